"""The thread world is strict, and decides deadlock: at once where it must come, never where it need not."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from distmetrics import Communicator, DivergedError, MismatchError, PeerLostError, ThreadWorld, current
from distmetrics.comm.background import start
from distmetrics.testing import outcomes, run
from tests.backends import same_error, verdicts

ONE = torch.ones(2)


def different_calls(comm: Any) -> None:
    comm.all_gather(ONE) if comm.rank else comm.barrier()


def different_ops(comm: Any) -> None:
    comm.all_reduce(ONE, "max" if comm.rank else "sum")


def different_shapes(comm: Any) -> None:
    comm.all_gather(torch.ones(2 + comm.rank))


def different_dimensions(comm: Any) -> None:
    comm.all_gather(torch.tensor(1.0) if comm.rank else torch.ones(1))


def different_dtypes(comm: Any) -> None:
    comm.all_reduce(ONE.double() if comm.rank else ONE, "sum")


def different_sources(comm: Any) -> None:
    comm.broadcast(ONE, comm.rank)


def different_parts(comm: Any) -> None:
    comm.all_to_all([torch.ones(1 + comm.rank)] * comm.world_size)


@pytest.mark.parametrize(
    "work",
    [
        different_calls,
        different_ops,
        different_shapes,
        different_dimensions,
        different_dtypes,
        different_sources,
        different_parts,
    ],
)
@pytest.mark.parametrize("world_size", [2, 3])
def test_unequal_calls_are_refused_on_every_rank(work: Any, world_size: int) -> None:
    """A real transport would abort, or hand out garbage; a lenient thread world would hide that from the tests."""
    error = same_error(outcomes(world_size, work), MismatchError)
    assert error.peers == tuple(range(world_size))


def test_the_text_of_unequal_calls() -> None:
    """Pinned: it is what a user reads."""
    error = same_error(outcomes(3, different_shapes), MismatchError)
    line = error.site.line if error.site else 0
    assert str(error) == (
        "ranks disagree on a collective\n"
        "\n"
        f"  rank 0  all_gather float32[2]  tests/comm/test_threads.py:{line} in different_shapes\n"
        f"  rank 1  all_gather float32[3]  tests/comm/test_threads.py:{line} in different_shapes\n"
        f"  rank 2  all_gather float32[4]  tests/comm/test_threads.py:{line} in different_shapes\n"
        "\n"
        "No data was moved.\n"
        "Likely: a condition, a loop length or a shape that differs between ranks.\n"
        "Do:     make every rank call the same collectives, in the same order, with equal shapes and dtypes."
    )


def test_the_world_goes_on_after_a_disagreement() -> None:
    """Nothing was moved, so nothing is out of step."""

    def work(comm: Communicator) -> Any:
        with pytest.raises(MismatchError):
            different_dtypes(comm)
        return comm.all_reduce(torch.tensor(1), "sum").item()

    assert run(3, work) == [3, 3, 3]


def test_a_world_runs_again_after_success_and_after_failure() -> None:
    """What one run left behind must not be taken for the next one's."""
    world = ThreadWorld(2)
    assert world.run(lambda comm: comm.rank) == [0, 1]
    with pytest.raises(DivergedError):
        world.run(lambda comm: comm.barrier() if comm.rank else None)
    assert world.run(lambda comm: comm.all_reduce(torch.tensor(1), "sum").item()) == [2, 2]


def test_a_skipped_collective_is_decided_the_moment_the_rank_returns() -> None:
    """Decided, not timed: the wait fails because it can never be met."""

    def work(comm: Communicator) -> str:
        if comm.rank == 1:
            return "gone"
        comm.barrier()
        return "never"

    ended = outcomes(4, work)
    assert verdicts(ended) == [("DivergedError", rank, (1,)) if rank != 1 else None for rank in range(4)]


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


def overlapping_groups(comm: Any) -> None:
    """Ranks 0-1, 1-2 and 2-0 form a ring of groups, and each rank begins with another one."""
    mine = [comm.subgroup(group) for group in ([0, 1], [1, 2], [0, 2]) if comm.rank in group]
    for group in mine if comm.rank != 2 else reversed(mine):
        group.barrier()


def ring_of_groups(comm: Any) -> None:
    after = (comm.rank + 1) % comm.world_size
    before = (comm.rank - 1) % comm.world_size
    for other in (after, before):
        comm.subgroup([comm.rank, other]).barrier()


@pytest.mark.parametrize("world_size", [3, 4, 5])
def test_subgroups_in_different_order_are_a_deadlock(world_size: int) -> None:
    """Every rank waits for its neighbour's first group: no wait can ever be met, and all are told who waits where."""
    error = same_error(outcomes(world_size, ring_of_groups), DivergedError)
    assert str(error).startswith("deadlock: every rank waits, and no wait can be met")
    assert error.peers == tuple(range(world_size))


def test_overlapping_subgroups_in_one_order_are_none() -> None:
    """The same groups, taken in an order that all ranks share, pass."""
    run(3, overlapping_groups)


def test_a_deadlock_of_some_is_decided_when_the_rest_has_ended() -> None:
    """While rank 2 works it could still be the one that helps; when it has returned it can't."""

    def work(comm: Any) -> str:
        if comm.rank == 2:
            return "done"
        group = comm.subgroup([0, 1])
        comm.barrier() if comm.rank == 0 else group.barrier()
        return "never"

    ended = outcomes(3, work)
    assert ended[2].value == "done"
    assert [type(outcome.error) for outcome in ended[:2]] == [DivergedError, DivergedError]


def test_a_subgroup_counts_its_own_ranks() -> None:
    """Rank and order inside a subgroup are the subgroup's."""

    def work(comm: Any) -> Any:
        if comm.rank == 1:
            return None
        group = comm.subgroup([3, 0, 2])
        return group.rank, group.world_size, [int(row) for row in group.all_gather(torch.tensor(comm.rank))]

    assert run(4, work) == [(0, 3, [0, 2, 3]), None, (1, 3, [0, 2, 3]), (2, 3, [0, 2, 3])]


def test_a_rank_outside_a_subgroup_has_no_end_of_it() -> None:
    """It would wait for an answer that is not for it."""
    with pytest.raises(ValueError, match="not in tuple"):
        ThreadWorld(3).communicator(1).subgroup([0, 2])


def test_a_world_needs_a_rank() -> None:
    """Zero ranks would return an empty list, and the test that asked for it would test nothing."""
    with pytest.raises(ValueError, match="world_size=0"):
        ThreadWorld(0)


def test_system_exit_and_interrupts_of_a_rank_come_home() -> None:
    """Nothing that ends a rank may be swallowed by its thread."""

    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            raise KeyboardInterrupt
        comm.barrier()

    ended = outcomes(2, work)
    assert isinstance(ended[0].error, KeyboardInterrupt)
    assert isinstance(ended[1].error, PeerLostError)


def test_each_rank_has_its_own_communicator_in_force() -> None:
    """Threads share a process; the communicator in force is per thread."""
    assert run(3, lambda comm: current() is comm) == [True] * 3
    assert current().world_size == 1


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
