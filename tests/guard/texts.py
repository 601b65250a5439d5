"""Every text that the guard ends a wait with, made by its own code: docs/errors.md shows them, and a test compares."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from distmetrics.comm.base import Call
from distmetrics.comm.board import Board
from distmetrics.comm.guard.sentry import Sentry
from distmetrics.comm.guard.wait import Wait
from distmetrics.comm.links import UnevenError
from distmetrics.comm.waits import uneven
from distmetrics.errors import Site
from distmetrics.testing import outcomes
from tests.comm.guard.simulated import Job


def _ended(prepare: Callable[[Job], Any], world_size: int = 2, seconds: float = 12.0) -> str:
    job = Job(world_size)
    prepare(job)
    job.run(seconds)
    inquiry = next(rank.inquiry for rank in job.ranks if rank.inquiry is not None)
    assert inquiry.verdict is not None
    return inquiry.verdict.text


def _late(job: Job) -> None:
    job.ranks[0].wait(timeout=10)


def _slow_link(job: Job) -> None:
    for rank in job.ranks:
        rank.wait(timeout=10)


def _circle(job: Job) -> None:
    job.ranks[0].wait("a")
    job.ranks[1].wait("b")


def _unlike(job: Job) -> None:
    job.ranks[0].wait(kind="all_reduce sum")
    job.ranks[1].wait(kind="barrier")


def _departed(failed: bool) -> Callable[[Job], None]:
    def prepare(job: Job) -> None:
        why = "raised ValueError: a bad batch  train.py:7 in step" if failed else "has returned"
        Board(job.store).leave(1, why, failed=failed)
        job.ranks[0].wait()

    return prepare


def _in_state(state: str) -> Callable[[Job], None]:
    def prepare(job: Job) -> None:
        job.states[1] = state
        job.ranks[0].wait()

    return prepare


def _foreign(job: Job) -> None:
    job.ranks[1].where, job.ranks[1].foreign = "is in torch.distributed.all_reduce  train.py:3 in main", "world"
    job.ranks[0].wait()


def _silent_store() -> str:
    """A store that has been asked, and has not answered."""
    sentry = Sentry.__new__(Sentry)
    sentry._busy_since, sentry._store_error = time.monotonic() - 4.2, ""
    sentry._me = Job(2).ranks[0].me
    call = Call('all_gather "val/f1"', "float32[10]", Site("train.py", 11, "main"))
    wait = Wait(call, "world", "0-1", 1, "all_gather")
    verdict = sentry._silence(wait)
    assert verdict is not None
    return verdict.text


def _uneven() -> str:
    call = Call("all_gather", "float32[1]", Site("train.py", 11, "main"))
    return uneven(Wait(call, "world", "0-1", 1, "all_gather"), UnevenError(1, 0, 8, 4)).text


def _raised(fn: Callable[[Any], Any]) -> str:
    return str(outcomes(2, fn)[0].error)


def _direct(comm: Any) -> None:
    from distmetrics.collectives.call_history import refuse_direct_calls

    kind = "all_reduce sum float32[4]" if comm.rank else "all_reduce sum int32[4]"
    comm.direct_calls = ["barrier  train.py:3 in main", f"{kind}  train.py:4 in main"]
    raise refuse_direct_calls(comm, lambda x, longest: comm.all_gather(_padded(x, longest)))


def _padded(x: torch.Tensor, longest: int) -> torch.Tensor:
    return torch.cat([x, x.new_zeros(longest - x.numel())])


TEXTS: dict[str, Callable[[], str]] = {
    "A rank is late": lambda: _ended(_late),
    "All came, and it does not end": lambda: _ended(_slow_link),
    "A rank failed": lambda: _ended(_departed(failed=True)),
    "A rank has returned": lambda: _ended(_departed(failed=False)),
    "A process is gone": lambda: _ended(_in_state("gone")),
    "A process is stopped": lambda: _ended(_in_state("stopped")),
    "A deadlock of groups": lambda: _ended(_circle),
    "Different calls in the same place": lambda: _ended(_unlike),
    "Gathers of different sizes": _uneven,
    "A collective of torch's own": lambda: _ended(_foreign),
    "The store does not answer": _silent_store,
    "Direct calls that differ": lambda: _raised(_direct),
}
