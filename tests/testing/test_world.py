"""The kit's worlds: the same function runs on threads and on processes, and ends the same way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import distmetrics as dm
from distmetrics import DivergedError
from distmetrics.testing import outcomes, run
from tests.backends import both_backends, verdicts
from tests.comm import ranks


@both_backends
def test_values_come_in_rank_order(backend: str) -> None:
    """Whichever rank ends first."""
    assert run(3, ranks_own_number, "r", backend=backend) == ["r0", "r1", "r2"]  # type: ignore[arg-type]


def ranks_own_number(comm: Any, letter: str) -> str:
    assert dm.current() is comm
    return f"{letter}{comm.rank}"


def test_threads_get_the_same_objects() -> None:
    """As documented: with threads arguments are shared, so a test can look at what ranks did."""
    seen: list[int] = []
    run(3, lambda comm, box: box.append(comm.rank), seen)
    assert sorted(seen) == [0, 1, 2]


def test_an_unknown_backend_is_refused() -> None:
    """A typo must not run on threads and look like a test of real processes."""
    with pytest.raises(ValueError, match="backend must be 'threads' or 'gloo', got 'nccl'"):
        run(1, ranks_own_number, "r", backend="nccl")  # type: ignore[arg-type]


@pytest.mark.gloo
@pytest.mark.parametrize("fn", [ranks.raises_on_one, ranks.returns_early_on_one])
def test_threads_end_as_processes_do(fn: Any) -> None:
    """What a user tests on threads holds on real processes: same error types, same ranks named."""
    on_threads, on_processes = (outcomes(3, fn, 0, backend=backend) for backend in ("threads", "gloo"))
    assert verdicts(on_threads) == verdicts(on_processes)
    assert [outcome.value for outcome in on_threads] == [outcome.value for outcome in on_processes]


@both_backends
def test_a_loop_that_is_longer_on_one_rank_is_named(backend: str) -> None:
    """The commonest hang there is: one rank has a batch more."""
    with pytest.raises(
        DivergedError, match=r"^ranks 0, 2 have returned, and others still wait for them|^rank \d has returned"
    ) as caught:
        run(3, one_batch_more, backend=backend)  # type: ignore[arg-type]
    assert caught.value.rank == 1
    assert set(caught.value.peers) <= {0, 2}


def one_batch_more(comm: Any) -> None:
    for _ in range(3 + (comm.rank == 1)):
        dm.all_reduce(torch.ones(2), name="loss", comm=comm)


@both_backends
def test_the_ranks_of_a_layout(backend: Any) -> None:
    """The communicator is the layout, and in force."""
    ranks = run(4, shard_and_sum, layout={"dp": 2, "tp": 2}, backend=backend)
    assert ranks == [(0, 3.0), (0, 3.0), (1, 3.0), (1, 3.0)]


def shard_and_sum(comm: Any) -> tuple[int, float]:
    return comm.rank, float(dm.all_reduce(comm.rank + 1.0))
