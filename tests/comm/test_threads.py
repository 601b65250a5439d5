"""The thread world is strict, moves data as real transports do, and decides deadlock: never where it need not come."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest
import torch

from distmetrics import (
    Communicator,
    DivergedError,
    MismatchError,
    PeerLostError,
    SingleCommunicator,
    ThreadWorld,
    current,
)
from distmetrics.comm.background import start
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import same_error, verdicts
from tests.comm import ranks

ONE = torch.ones(2)


@pytest.mark.parametrize(
    ("backend", "world_size"),
    [*(("threads", size) for size in (1, 2, 3, 5)), pytest.param("gloo", 3, marks=pytest.mark.gloo)],
)
def test_every_transport_keeps_the_contract(backend: Any, world_size: int) -> None:
    """Equal shapes, rank order, any dtype, never in place; misuse is refused in one voice."""
    texts = run(world_size, ranks.everything, backend=backend)[0]
    wanted = [f"broadcast from rank {src} in a world of {world_size}" for src in (world_size, -1)]
    assert texts[-2:] == wanted
    if world_size > 1:
        assert texts[0] == f"all_to_all needs {world_size} parts alike, got float32[2]"
        assert texts[1].startswith(f"all_to_all needs {world_size} parts alike, got float32[1], float32[2]")
    else:  # of an ordinary script, behind a recorder too
        for comm in (SingleCommunicator(), RecordingCommunicator(SingleCommunicator())):
            assert isinstance(comm, Communicator)
            assert ranks.everything(comm) == texts


@pytest.mark.gloo
def test_large_and_small_gathers_that_meet_end_in_an_error() -> None:
    """Gloo makes them in two ways that never meet: without a word from the guard, all would wait for ever."""
    ended = outcomes(2, ranks.gathers_unequal_sizes, backend="gloo", limit=60)
    assert "all_gather of large data" in str(same_error(ended, MismatchError))


DIFFERENT = {
    "calls": lambda comm: comm.all_gather(ONE) if comm.rank else comm.barrier(),
    "ops": lambda comm: comm.all_reduce(ONE, "max" if comm.rank else "sum"),
    "shapes": lambda comm: comm.all_gather(torch.ones(2 + comm.rank)),
    "dimensions": lambda comm: comm.all_gather(torch.tensor(1.0) if comm.rank else torch.ones(1)),
    "dtypes": lambda comm: comm.all_reduce(ONE.double() if comm.rank else ONE, "sum"),
    "sources": lambda comm: comm.broadcast(ONE, comm.rank),
    "parts": lambda comm: comm.all_to_all([torch.ones(1 + comm.rank)] * comm.world_size),
}


def test_unequal_calls_are_refused_on_every_rank_and_the_world_goes_on() -> None:
    """A real transport would abort, or hand out garbage; a lenient thread world would hide that from the tests."""

    def work(comm: Communicator) -> list[str]:
        texts = []
        for call in DIFFERENT.values():
            with pytest.raises(MismatchError) as caught:
                call(comm)
            assert (caught.value.rank, caught.value.peers) == (comm.rank, (0, 1, 2))
            assert comm.all_reduce(torch.tensor(1), "sum") == 3
            texts.append(str(caught.value))
        return texts

    first, *others = run(3, work)
    assert others == [first] * 2
    (text,) = [each for each in first if "float32[4]" in each]  # what a user reads of shapes
    assert re.sub(r":\d+ in <lambda>", "", text) == (
        "ranks disagree on a collective\n"
        "\n"
        "  rank 0  all_gather float32[2]  tests/comm/test_threads.py\n"
        "  rank 1  all_gather float32[3]  tests/comm/test_threads.py\n"
        "  rank 2  all_gather float32[4]  tests/comm/test_threads.py\n"
        "\n"
        "No data was moved.\n"
        "Likely: a condition, a loop length or a shape that differs between ranks.\n"
        "Do:     make every rank call the same collectives, in the same order, with equal shapes and dtypes."
    )


def test_a_rank_that_returns_or_raises_is_named_by_the_others_at_once() -> None:
    """Decided, not timed. The rank keeps its own error, and the world can run again."""
    world = ThreadWorld(3)
    ended = world.outcomes(ranks.returns_early_on_one, 1)
    assert verdicts(ended) == [("DivergedError", rank, (1,)) if rank != 1 else None for rank in range(3)]
    ended = world.outcomes(ranks.raises_on_one, 1)
    assert isinstance(ended[1].error, KeyError)
    for rank in (0, 2):
        error = ended[rank].error
        assert isinstance(error, PeerLostError)
        assert re.search(r"rank 1\s+raised KeyError: 'no such column'  tests/comm/ranks.py:\d+ in raises", str(error))
    with pytest.raises(KeyError, match="no such column") as caught:
        world.run(ranks.raises_on_one, 1)
    assert caught.value.__notes__[:2] == [
        "raised on rank 1",
        "ranks 0, 2 raised PeerLostError: rank 1 failed and will never answer",
    ]
    assert world.run(lambda comm: current() is comm and int(comm.all_reduce(torch.tensor(1), "sum"))) == [3, 3, 3]
    assert current().world_size == 1  # what is in force is so in each thread


def test_system_exit_and_interrupts_of_a_rank_come_home() -> None:
    """Nothing that ends a rank may be swallowed by its thread; who lost a peer is told so in each later call."""

    def work(comm: Communicator) -> list[str]:
        if comm.rank == 0:
            raise KeyboardInterrupt
        texts = []
        for _ in range(2):
            with pytest.raises(PeerLostError) as caught:
                comm.barrier()
            texts.append(caught.value.what)
        return texts

    ended = outcomes(2, work)
    assert isinstance(ended[0].error, KeyboardInterrupt)
    assert ended[1].value == ["rank 0 failed and will never answer"] * 2


def test_a_slow_rank_is_waited_for() -> None:
    """A rank at work outside any collective is no deadlock, however long it takes."""
    others_wait = threading.Barrier(3)

    def work(comm: Communicator) -> int:
        others_wait.wait()
        if comm.rank == 2:
            while len(comm._me.meetings.going) > 1:  # type: ignore[attr-defined]  # until the others are in the collective
                threading.Event().wait(0.001)
        return int(comm.all_reduce(torch.tensor(comm.rank), "sum"))

    assert run(3, work) == [3, 3, 3]


def ring_of_groups(comm: Any, in_order: bool) -> None:
    others = [(comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size]
    groups = [sorted([comm.rank, other]) for other in others]
    for group in sorted(groups) if in_order else groups:
        comm.subgroup(group).barrier()


@pytest.mark.parametrize("world_size", [3, 4, 5])
def test_subgroups_in_different_order_are_a_deadlock_and_in_one_order_none(world_size: int) -> None:
    """Every rank waits for its neighbour's first group: no wait can ever be met, and all are told who waits where."""
    run(world_size, ring_of_groups, True)
    error = same_error(outcomes(world_size, ring_of_groups, False), DivergedError)
    assert str(error).startswith("deadlock: every rank waits, and no wait can be met")
    assert error.peers == tuple(range(world_size))


def test_a_deadlock_of_some_is_decided_when_the_rest_has_ended() -> None:
    """While rank 2 works it could still be the one that helps; when it has returned it can't."""

    def work(comm: Any) -> str:
        if comm.rank < 2:
            group = comm.subgroup([0, 1])
            comm.barrier() if comm.rank == 0 else group.barrier()
        return "done"

    ended = outcomes(3, work)
    assert ended[2].value == "done"
    assert [type(outcome.error) for outcome in ended[:2]] == [DivergedError, DivergedError]


def test_a_subgroup_counts_its_own_ranks_and_a_rank_outside_has_no_end_of_it() -> None:
    def work(comm: Any) -> Any:
        if comm.rank == 1:
            return None
        group = comm.subgroup([3, 0, 2])
        return group.rank, group.world_size, [int(row) for row in group.all_gather(torch.tensor(comm.rank))]

    assert run(4, work) == [(0, 3, [0, 2, 3]), None, (1, 3, [0, 2, 3]), (2, 3, [0, 2, 3])]
    with pytest.raises(ValueError, match="not in tuple"):
        ThreadWorld(3).communicator(1).subgroup([0, 2])
    with pytest.raises(ValueError, match="world_size=0"):
        ThreadWorld(0)


def busy(comm: Any) -> None:
    """Not come back in time, on one rank."""
    time.sleep(comm.rank)


def test_a_rank_that_never_comes_back_is_left_behind() -> None:
    """Its outcome says where it was."""
    first, second = ThreadWorld(2).outcomes(busy, limit=0.2)
    assert first.error is None
    assert isinstance(second.error, PeerLostError)
    assert "in busy" in "".join(second.error.__notes__)


def test_a_call_in_the_background_of_the_cpu_touches_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fork of a process that has used one, torch could not even begin to."""
    touched: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: touched.append("current_device") or 0)
    assert run(2, lambda comm: start(lambda twin: twin.rank, comm).result()) == [0, 1]
    assert not touched
