"""Threads of a pool are used again, and one that was told to end is not."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest
import torch

from distmetrics import PeerLostError, ThreadWorld
from distmetrics.comm.threads import ThreadPool


def runs(comm: Any) -> tuple[int, threading.Thread]:
    """Who runs this rank; the ranks meet, so that no thread is free while another is needed."""
    comm.barrier()
    return comm.rank, threading.current_thread()


def workers() -> list[threading.Thread]:
    """Threads of crews that live."""
    return [thread for thread in threading.enumerate() if type(thread).__name__ == "Worker"]


def test_worlds_of_one_crew_share_its_threads_and_they_end_with_it() -> None:
    """Whatever the sizes of the worlds."""
    before = workers()
    with ThreadPool() as pool:
        seen = [ThreadWorld(size, pool=pool).run(runs) for size in (3, 2, 3, 1)]
        assert [[rank for rank, _ in world] for world in seen] == [[0, 1, 2], [0, 1], [0, 1, 2], [0]]
        assert len({thread for world in seen for _, thread in world}) == 3
    assert workers() == before


def test_a_world_of_its_own_leaves_no_thread() -> None:
    """Also where a rank raises."""
    before = workers()
    ThreadWorld(2).run(runs)
    with pytest.raises(ValueError, match="mine"):
        ThreadWorld(2).run(fails)
    assert workers() == before


def fails(comm: Any) -> None:
    """Raise on one rank."""
    if comm.rank:
        raise ValueError("mine")


def test_an_error_costs_no_thread() -> None:
    """What a rank raises is its outcome; its thread goes on."""
    with ThreadPool() as pool:
        first = ThreadWorld(2, pool=pool).run(runs)
        with pytest.raises(ValueError, match="mine"):
            ThreadWorld(2, pool=pool).run(fails)
        again = ThreadWorld(2, pool=pool).run(runs)
    assert {thread for _, thread in first} == {thread for _, thread in again}


def busy(comm: Any) -> None:
    """Never come back, on one rank."""
    while comm.rank:
        time.sleep(0.01)


def test_a_rank_that_was_left_behind_gives_its_thread_away() -> None:
    """It was told to end, and may be anywhere: the next world has another."""
    with ThreadPool() as pool:
        first = dict(ThreadWorld(2, pool=pool).run(runs))
        outcomes = ThreadWorld(2, pool=pool).outcomes(busy, limit=0.2)
        assert isinstance(outcomes[1].error, PeerLostError)
        assert "in busy" in "".join(outcomes[1].error.__notes__)
        again = dict(ThreadWorld(2, pool=pool).run(runs))
    assert len({*first.values()} & {*again.values()}) == 1


def test_gradients_are_on_whatever_the_last_rank_left() -> None:
    """As in a thread of its own."""

    def leaves(comm: Any) -> bool:
        was = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        return was

    with ThreadPool() as pool:
        assert [ThreadWorld(2, pool=pool).run(leaves) for _ in range(2)] == [[True, True]] * 2


def test_what_a_rank_held_is_let_go() -> None:
    """An idle thread keeps nothing of its last work alive."""

    class Held:
        pass

    with ThreadPool() as pool:
        held = Held()
        ref = weakref.ref(held)
        ThreadWorld(2, pool=pool).run(lambda comm, it=held: None)
        del held
        deadline = time.monotonic() + 5
        while ref() is not None and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.01)
        assert ref() is None


def test_what_a_rank_left_in_a_local_is_forgotten() -> None:
    """A cache of a metric's class, say: ranks of the next world have new ones, made as in a new thread."""

    class Cache(threading.local):
        def __init__(self) -> None:
            self.value = 0

    cache, plain = Cache(), threading.local()

    def counts(comm: Any) -> tuple[int, int]:
        cache.value += 1
        plain.value = getattr(plain, "value", 0) + 1
        comm.barrier()
        return cache.value, plain.value

    with ThreadPool() as pool:
        assert [ThreadWorld(2, pool=pool).run(counts) for _ in range(3)] == [[(1, 1)] * 2] * 3
