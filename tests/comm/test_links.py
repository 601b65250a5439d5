"""Sockets between the ranks of one machine: what was sent arrives, in order, or the reason why not."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from distmetrics.comm import linking
from distmetrics.comm.linking import link, links_wanted
from distmetrics.comm.links import Links, UnevenError
from distmetrics.errors import ConfigurationError, MismatchError, PeerLostError
from distmetrics.testing import outcomes, run
from tests.comm import ranks


@pytest.fixture
def pair() -> Iterator[tuple[Links, Links]]:
    """Two ranks' ends."""
    one, other = socket.socketpair()
    ends = Links({1: one}), Links({0: other}, rank=1)
    yield ends
    for end in ends:
        end.close()


def filled(value: int, size: int) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8)


def rows(size: int) -> list[torch.Tensor]:
    return [filled(255, size), filled(255, size)]


@pytest.mark.parametrize("size", [0, 1, 7, 32768, 5_000_000])
def test_each_gets_what_the_other_sent(pair: tuple[Links, Links], size: int) -> None:
    """Also more than the kernel holds, which is sent on while a rank waits; its own row is left as it is."""
    got = [rows(size), rows(size)]
    exchanges = [pair[rank].exchange(filled(rank, size), got[rank]) for rank in range(2)]
    waiting = threading.Thread(target=exchanges[1].done, args=[10.0])
    waiting.start()
    assert exchanges[0].done(10.0)
    waiting.join()
    for rank in range(2):
        assert got[rank][1 - rank].eq(1 - rank).all()
        assert got[rank][rank].eq(255).all()


def test_it_is_not_done_before_the_other_has_sent(pair: tuple[Links, Links]) -> None:
    """A wait ends after its time, and goes on when it is asked again."""
    got = rows(4)
    mine = pair[0].exchange(filled(0, 4), got)
    assert not mine.done(0.01)
    assert not mine.done(0.0)
    pair[1].exchange(filled(1, 4), rows(4))
    assert mine.done(10.0)
    assert got[1].tolist() == [1] * 4


def test_an_exchange_that_nobody_waited_for_keeps_its_place(pair: tuple[Links, Links]) -> None:
    """After Ctrl-C in one the next does not take its data."""
    first, second = rows(3), rows(3)
    pair[0].exchange(filled(0, 3), first)
    again = pair[0].exchange(filled(10, 3), second)
    third = pair[0].exchange(filled(20, 3), rows(3))
    assert not again.done(0.0)
    waiting = threading.Thread(target=third.done, args=[10.0])
    waiting.start()
    for value in (1, 11, 21):
        assert pair[1].exchange(filled(value, 3), got := rows(3)).done(10.0)
    waiting.join()
    assert again.done(0.0)
    assert (first[1].tolist(), second[1].tolist(), got[0].tolist()) == ([1] * 3, [11] * 3, [20] * 3)


class InterruptError(Exception):
    """What the handler of a signal raises."""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads")
def test_a_signal_between_any_two_steps_loses_nothing(pair: tuple[Links, Links]) -> None:
    """Many of them: what was sent or received when one came is neither moved twice nor lost."""
    count, size = 1500, 20_000
    got = [[rows(size) for _ in range(count)] for _ in range(2)]
    me, armed, over = threading.get_ident(), [False], threading.Event()

    def peer() -> None:
        for step in range(count):
            assert pair[1].exchange(filled(step % 251, size), got[1][step]).done(20.0)

    def interrupt() -> None:
        while not over.wait(1e-4):
            signal.pthread_kill(me, signal.SIGUSR1)

    def raises(*_: Any) -> None:
        if armed[0]:
            armed[0] = False  # one for each
            raise InterruptError

    threads = [threading.Thread(target=peer), threading.Thread(target=interrupt)]
    interrupted = 0
    before = signal.signal(signal.SIGUSR1, raises)
    for thread in threads:
        thread.start()
    try:
        for step in range(count):
            while pair[0].begun == step:  # one that was begun keeps its place; one that was not is begun again
                try:
                    armed[0] = True
                    pair[0].exchange(filled((step + 7) % 251, size), got[0][step]).done(20.0)
                    armed[0] = False
                except InterruptError:
                    interrupted += 1
    finally:
        over.set()
        threads[1].join()
        signal.signal(signal.SIGUSR1, before)
    deadline = time.monotonic() + 20
    while pair[0].pending and time.monotonic() < deadline:
        pair[0].go_on()
    threads[0].join(20)
    assert interrupted > 20
    for step in range(count):
        assert got[0][step][1].eq(step % 251).all(), step
        assert got[1][step][0].eq((step + 7) % 251).all(), step


def test_a_gather_lasts_no_longer_than_its_group_allows() -> None:
    """As with every call of torch's."""
    one, other = socket.socketpair()
    end = Links({1: one}, timeout=0.05)
    with pytest.raises(RuntimeError, match=r"the group's time-out of 0\.05 s is over"):
        end.exchange(filled(0, 2), rows(2)).done(10.0)
    end.close()
    other.close()


def test_another_number_of_bytes_is_told_on_both(pair: tuple[Links, Links]) -> None:
    """Neither takes a part of it for the whole."""
    exchanges = [pair[rank].exchange(filled(rank, 4 + rank), rows(4 + rank)) for rank in range(2)]
    for rank in range(2):
        with pytest.raises(UnevenError) as caught:
            exchanges[rank].done(10.0)
        assert (caught.value.peer, caught.value.theirs, caught.value.mine) == (1 - rank, 5 - rank, 4 + rank)
        assert caught.value.me == rank


def test_an_end_that_is_closed_is_told(pair: tuple[Links, Links]) -> None:
    """What was sent before is received; then reading and writing say that it is over."""
    pair[1].exchange(filled(1, 2), rows(2))
    pair[1].close()
    with pytest.raises(RuntimeError, match=r"^Connection reset: sending to rank 1 failed: .*Broken pipe"):
        pair[0].exchange(filled(0, 2), rows(2))
    one, other = socket.socketpair()
    end = Links({1: one})
    mine = end.exchange(filled(0, 2), rows(2))
    other.recv(1 << 10)
    other.close()
    with pytest.raises(RuntimeError, match=r"^Connection closed by rank 1$"):
        mine.done(10.0)
    end.close()


def test_sockets_are_closed_with_their_links() -> None:
    """A ResourceWarning would be an error here."""
    one, other = socket.socketpair()
    links = Links({1: one})
    del links
    gc.collect()
    assert one.fileno() == -1
    other.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_does_not_keep_the_sockets(pair: tuple[Links, Links]) -> None:
    """A data loader's worker that outlives its rank would hide from the others that it is gone."""
    child = os.fork()
    if not child:
        os._exit(0 if pair[0].sockets[1].fileno() == -1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert pair[0].sockets[1].fileno() != -1


def linked(world_size: int, wanted: Sequence[bool] | None = None) -> list[Links | None]:
    """Connect ranks that are threads, and that gather through a list."""
    barrier = threading.Barrier(world_size)
    said: list[bytes] = [b""] * world_size
    made: list[Links | None] = [None] * world_size

    def body(rank: int) -> None:
        def gather(mine: bytes) -> list[bytes]:
            said[rank] = mine
            barrier.wait(20)
            everything = [*said]
            barrier.wait(20)
            return everything

        made[rank] = link(gather, rank, world_size, wanted=wanted is None or wanted[rank])

    threads = [threading.Thread(target=body, args=[rank]) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


linux = pytest.mark.skipif(not links_wanted({}), reason="only Linux has these sockets")


@linux
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_ranks_of_one_machine_are_linked(world_size: int) -> None:
    """Each to every other, and no two to the wrong one."""
    made = linked(world_size)
    got = [[filled(255, 3) for _ in range(world_size)] for _ in range(world_size)]
    exchanges = []
    for rank, links in enumerate(made):
        assert links is not None
        assert sorted(links.sockets) == [peer for peer in range(world_size) if peer != rank]
        exchanges.append(links.exchange(filled(rank, 3), got[rank]))
    for rank, exchange in enumerate(exchanges):
        assert exchange.done(10.0)
        assert [row.tolist() for peer, row in enumerate(got[rank]) if peer != rank] == [
            [peer] * 3 for peer in range(world_size) if peer != rank
        ]
    for links in made:
        assert links is not None
        links.close()


@linux
@pytest.mark.parametrize("world_size", [1, 3, 65])
def test_no_rank_is_linked_where_one_cannot_be(world_size: int) -> None:
    """One that says off; a world of one; a world whose sockets would be too many."""
    wanted = [rank != 1 or world_size != 3 for rank in range(world_size)]
    assert linked(world_size, wanted) == [None] * world_size


@linux
@pytest.mark.parametrize("part", ["_connect", "_accept", "_machine"])
def test_what_fails_on_one_rank_is_known_to_all(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever step it is in: a container with a namespace of its own, a socket that is refused, a stranger."""
    original: Callable[..., Any] = getattr(linking, part)
    lock, calls = threading.Lock(), [0]

    def fails_once(*args: Any) -> Any:
        with lock:
            calls[0] += 1
            first = calls[0] == 1
        return (b"another machine".ljust(32) if part == "_machine" else None) if first else original(*args)

    monkeypatch.setattr(linking, part, fails_once)
    assert linked(3) == [None] * 3


@linux
def test_a_stranger_is_not_taken_for_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who knows the socket, but not a rank's token."""
    original = linking._connect
    monkeypatch.setattr(linking, "_connect", lambda tokens, mine, stack: original(tokens, mine[::-1], stack))
    assert linked(2) == [None, None]


def test_the_setting_is_on_or_off() -> None:
    """Anything else is refused, and says what it may be."""
    assert not links_wanted({"DISTMETRICS_LINKS": " OFF "})
    assert links_wanted({"DISTMETRICS_LINKS": ""}) == links_wanted({"DISTMETRICS_LINKS": "on"})
    with pytest.raises(ConfigurationError, match="DISTMETRICS_LINKS: neither on nor off: 'no'"):
        links_wanted({"DISTMETRICS_LINKS": "no"})


@linux
@pytest.mark.gloo
@pytest.mark.parametrize("setting", ["on", "off"])
def test_processes_keep_the_contract_with_links_and_without(setting: str) -> None:
    """Where ranks are on several machines there are none."""
    assert run(2, ranks.everything_and_linked, setting, backend="gloo") == [setting == "on"] * 2


@linux
@pytest.mark.gloo
def test_gathers_of_different_sizes_are_an_error_on_every_rank() -> None:
    """Directly on a communicator, where no manifest was compared: gloo aborts the process, or gives garbage."""
    ended = outcomes(3, ranks.gathers_unevenly, backend="gloo")
    assert [type(outcome.error) for outcome in ended] == [MismatchError] * 3
    text = str(ended[0].error)
    assert text.startswith("rank 1 sends 8 bytes where rank 0 sends 4")
    assert "tests/comm/ranks.py" in text


@linux
@pytest.mark.gloo
def test_a_subgroup_has_links_of_its_own() -> None:
    """Ranks are those of the group; the world's links are not used for it."""
    assert run(3, ranks.gathers_in_a_subgroup, backend="gloo") == [None, [1, 2], [1, 2]]


@linux
@pytest.mark.gloo
def test_a_rank_that_is_killed_is_named_by_who_waits_at_its_socket() -> None:
    """At once: its end of the socket is closed with it."""
    ended = outcomes(3, ranks.dies_between_gathers, backend="gloo")
    for rank in (0, 2):
        error = ended[rank].error
        assert isinstance(error, PeerLostError)
        assert error.peers == (1,)
