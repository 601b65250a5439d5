"""The kit's worlds: the same function on threads and on processes, and processes that stay for many jobs."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

import psutil
import pytest
import torch

import distmetrics as dm
from distmetrics import DivergedError, PeerLostError
from distmetrics.testing import outcomes, run
from distmetrics.testing.worlds import worlds
from tests.backends import both_backends, verdicts
from tests.comm import ranks

NAMES = {f"metric {i}" for i in range(20)}


def one_batch_more(comm: Any) -> None:
    for _ in range(3 + (comm.rank == 1)):
        dm.all_reduce(torch.ones(2), name="loss", comm=comm)


def order_and_sum(comm: Any) -> tuple[list[str], dict[str, float]]:
    metrics: dict[str, Any] = {}  # not torchmetrics', which would take these interpreters seconds to import
    for name in NAMES:  # in the order that this rank's interpreter gives them
        metrics[name] = dm.from_function(lambda values: values["x"], reduce={"x": "sum"})
        metrics[name].update(x=torch.tensor(float(name.split()[1])))
    values = dm.sync_and_compute(metrics)
    return list(set(NAMES)), {name: float(value) for name, value in values.items()}


@pytest.mark.gloo
@pytest.mark.parametrize("fn", [ranks.raises_on_one, ranks.returns_early_on_one])
def test_threads_end_as_processes_do(fn: Any) -> None:
    """What a user tests on threads holds on real processes: same error types, same ranks named."""
    on_threads, on_processes = (outcomes(3, fn, 0, backend=backend) for backend in ("threads", "gloo"))
    assert verdicts(on_threads) == verdicts(on_processes)
    assert [outcome.value for outcome in on_threads] == [outcome.value for outcome in on_processes]


@both_backends
def test_a_loop_that_is_longer_on_one_rank_is_named(backend: Any) -> None:
    """The commonest hang there is: one rank has a batch more."""
    said = r"^ranks 0, 2 have returned, and others still wait for them|^rank \d has returned"
    with pytest.raises(DivergedError, match=said) as caught:
        run(3, one_batch_more, backend=backend)
    assert caught.value.rank == 1
    assert set(caught.value.peers) <= {0, 2}


@pytest.mark.gloo
def test_metrics_from_a_set_are_paired_by_name() -> None:
    """Ranks that list them in different order get the same sums."""
    (first, values), (second, again) = run(2, order_and_sum, backend="gloo", hash_seeds=[1, 2])
    assert first != second  # else nothing was tested
    assert values == again == {name: 2 * float(name.split()[1]) for name in NAMES}


@pytest.mark.parametrize("options", [{"hash_seeds": [1, 2]}, {"hash_seeds": [1], "backend": "gloo"}])
def test_seeds_need_processes_and_one_each(options: Any) -> None:
    with pytest.raises(ValueError, match="a seed for each rank"):
        run(2, order_and_sum, **options)
    with pytest.raises(ValueError, match="backend must be 'threads' or 'gloo', got 'nccl'"):
        run(1, order_and_sum, backend="nccl")  # type: ignore[arg-type]


def total(comm: Any) -> tuple[int, float]:
    return os.getpid(), float(dm.all_reduce(torch.tensor(comm.rank + 1.0)))


def fails(comm: Any, how: str) -> None:
    if comm.rank == 0 and how == "raises":
        raise ValueError("no such file")
    if comm.rank == 1 and how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 0 and how == "hangs":
        time.sleep(1000)
    dm.all_reduce(torch.tensor(1.0))


@pytest.mark.gloo
def test_a_world_does_many_jobs_and_a_failure_ends_it() -> None:
    """A kill, an error, a hang: each is told, and none reaches the next job, which has a new world."""
    with worlds("gloo", limit=3.0) as run_world:
        first, again = ([outcome.value for outcome in run_world(2, total)] for _ in range(2))
        assert first == again
        killed = run_world(2, partial(fails, how="is killed"))
        assert isinstance(killed[1].error, PeerLostError)
        assert "SIGKILL" in str(killed[1].error)
        failed = run_world(2, partial(fails, how="raises"))
        assert [type(each.error) for each in failed] == [ValueError, PeerLostError]
        hung = run_world(2, partial(fails, how="hangs"))
        assert isinstance(hung[0].error, PeerLostError)
        assert isinstance(hung[1].error, PeerLostError | DivergedError)
        pids = [outcome.value[0] for outcome in run_world(2, total)]
    assert not any(psutil.pid_exists(pid) for pid in pids), "processes end with the block"
