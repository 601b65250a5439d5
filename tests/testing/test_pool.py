"""Worlds of processes that stay: many jobs, and a new world after a failure."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil
import pytest
import torch
from distmetrics.testing.pool import Pool, pools

import distmetrics as dm
from distmetrics.errors import DivergedError, PeerLostError

pytestmark = pytest.mark.gloo


def total(comm: Any) -> tuple[int, float]:
    return os.getpid(), float(dm.all_reduce(torch.tensor(comm.rank + 1.0)))


def kills_itself(comm: Any) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dm.all_reduce(torch.tensor(1.0))


def raises(comm: Any) -> None:
    if comm.rank == 0:
        raise ValueError("no such file")
    dm.all_reduce(torch.tensor(1.0))  # distlint: ignore[DL101] what is tested


def hangs(comm: Any) -> None:
    if comm.rank == 0:
        time.sleep(1000)
    dm.all_reduce(torch.tensor(1.0))


def test_one_world_does_many_jobs() -> None:
    """In the same processes, which end with the block."""
    with pools() as pool_of:
        first = [outcome.value for outcome in pool_of(2).outcomes(total)]
        again = [outcome.value for outcome in pool_of(2).outcomes(total)]
        assert first == again
        assert [value for _, value in first] == [3.0, 3.0]
        pids = [pid for pid, _ in first]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_failure_ends_the_world_and_the_next_job_has_a_new_one() -> None:
    """A kill, an error, a hang: each is told, and none reaches the next job."""
    pool = Pool(2, limit=3.0)
    try:
        killed = pool.outcomes(kills_itself)
        assert isinstance(killed[1].error, PeerLostError)
        assert "SIGKILL" in str(killed[1].error)
        failed = pool.outcomes(raises)
        assert isinstance(failed[0].error, ValueError)
        assert isinstance(failed[1].error, PeerLostError)
        hung = pool.outcomes(hangs)
        assert isinstance(hung[0].error, PeerLostError)
        assert isinstance(hung[1].error, PeerLostError | DivergedError)
        assert [outcome.value[1] for outcome in pool.outcomes(total)] == [3.0, 3.0]
    finally:
        pool.close()


def test_closing_twice_is_fine() -> None:
    """And closing what never started."""
    pool = Pool(2)
    pool.close()
    pool.close()
