"""Every text that the guard ends a wait with, made by its own code: docs/errors.md shows them, and a test compares."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from distmetrics.comm.communicator import Call
from distmetrics.comm.verdict import Departure
from distmetrics.comm.work import PendingCall
from distmetrics.errors import Site
from distmetrics.guard.settings import Settings
from distmetrics.guard.store import StoreLink
from distmetrics.guard.tombstones import Departures
from distmetrics.guard.watchdog import Roster, Watchdog
from distmetrics.testing import outcomes
from tests.guard.simulated import Job


def _ended(prepare: Callable[[Job], Any], world_size: int = 2, seconds: float = 12.0) -> str:
    job = Job(world_size)
    prepare(job)
    job.run(seconds)
    diagnosis = next(rank.diagnosis for rank in job.ranks if rank.diagnosis is not None)
    assert diagnosis.verdict is not None
    return str(diagnosis.verdict)


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
        Departures(job.store).leave(Departure(1, why, failed))
        job.ranks[0].wait()

    return prepare


def _in_state(state: str) -> Callable[[Job], None]:
    def prepare(job: Job) -> None:
        job.states[1] = state
        job.ranks[0].wait()

    return prepare


def _foreign(job: Job) -> None:
    job.ranks[1].where = "is in torch.distributed.all_reduce  train.py:3 in main"
    job.ranks[1].still, job.ranks[1].issued = 1.0, {"world": 4}
    job.ranks[0].wait()


def _uneven(job: Job) -> None:
    job.ranks[0].wait(counts_exactly=True)
    job.ranks[1].wait(counts_exactly=True, issued=4)


def _silent_store() -> str:
    """A store that has been asked, and has not answered."""
    watchdog = Watchdog.__new__(Watchdog)
    rank = Job(2).ranks[0]
    watchdog._me, watchdog.settings, watchdog.roster = rank.me, Settings(), Roster(rank.store, rank.me, {})
    watchdog._link = StoreLink(dist.HashStore(), 0, 2)
    watchdog._link._since = time.monotonic() - 60.2
    call = Call('all_gather "val/f1"', "float32[10]", Site("train.py", 11, "main"))
    verdict = watchdog._silence(PendingCall(call, "world", "0-1", 1, "all_gather"))
    assert verdict is not None
    return str(verdict)


def _raised(fn: Callable[[Any], Any]) -> str:
    return str(outcomes(2, fn)[0].error)


def _direct(comm: Any) -> None:
    from distmetrics.collectives.history import refuse_histories

    kind = "all_reduce sum float32[4]" if comm.rank else "all_reduce sum int32[4]"
    comm.record.direct_calls.extend(["barrier  train.py:3 in main", f"{kind}  train.py:4 in main"])
    raise refuse_histories(comm)


def _interrupted(comm: Any) -> None:
    from distmetrics.collectives.history import refuse_histories

    comm.record.calls = 4
    if comm.rank:
        comm.record.note_interrupt("TimeoutError", Site("train.py", 21, "validate"))
    raise refuse_histories(comm)


TEXTS: dict[str, Callable[[], str]] = {
    "A rank is late": lambda: _ended(_late),
    "All came, and it does not end": lambda: _ended(_slow_link),
    "A rank failed": lambda: _ended(_departed(failed=True)),
    "A rank has returned": lambda: _ended(_departed(failed=False)),
    "A process is gone": lambda: _ended(_in_state("gone")),
    "A process is stopped": lambda: _ended(_in_state("stopped")),
    "A deadlock of groups": lambda: _ended(_circle),
    "Different calls in the same place": lambda: _ended(_unlike),
    "A collective of torch's own": lambda: _ended(_foreign),
    "Another number of torch's own": lambda: _ended(_uneven),
    "The store does not answer": _silent_store,
    "Direct calls that differ": lambda: _raised(_direct),
    "A call was interrupted": lambda: _raised(_interrupted),
}
