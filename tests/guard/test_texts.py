"""Every text that the guard ends a wait with, made by its own code, is as docs/errors.md shows it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from distmetrics.collectives.history import refuse_histories
from distmetrics.comm import call_lock
from distmetrics.comm.communicator import Call
from distmetrics.comm.verdict import Departure
from distmetrics.comm.work import PendingCall
from distmetrics.errors import Site
from distmetrics.guard.settings import Settings
from distmetrics.guard.store import StoreConnection
from distmetrics.guard.tombstones import Tombstones
from distmetrics.guard.watchdog import Membership, Watchdog
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
        Tombstones(job.store).leave(Departure(1, why, failed))
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
    watchdog._me, watchdog.settings, watchdog.membership = rank.me, Settings(), Membership(rank.store, rank.me, {})
    watchdog._connection = StoreConnection(dist.HashStore(), 0, 2)
    watchdog._connection._since = time.monotonic() - 60.2
    call = Call('all_gather "val/f1"', "float32[10]", Site("train.py", 11, "main"))
    verdict = watchdog._silence(PendingCall(call, "world", "0-1", 1, "all_gather"))
    assert verdict is not None
    return str(verdict)


def _direct() -> str:
    def refuse(comm: Any) -> None:
        kind = "all_reduce sum float32[4]" if comm.rank else "all_reduce sum int32[4]"
        comm.state.direct_calls.extend(["barrier  train.py:3 in main", f"{kind}  train.py:4 in main"])
        raise refuse_histories(comm)

    return str(outcomes(2, refuse)[0].error)


def _interrupted() -> str:
    call = Call("all_reduce sum", site=Site("train.py", 21, "validate"))
    with mock.patch("distmetrics.comm.call_lock.call_site", return_value=None):
        return outcomes(2, lambda comm: str(call_lock._interrupted(comm, call, "TimeoutError")))[1].value


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
    "Direct calls that differ": _direct,
    "A call was interrupted": _interrupted,
}
PAGE = (Path(__file__).parents[2] / "docs/errors.md").read_text()
SHOWN = dict(re.findall(r"^## (.+?)\n.*?^```text\n(.*?)\n```", PAGE, flags=re.MULTILINE | re.DOTALL))


def test_each_text_has_its_place_on_the_page_and_no_other_has() -> None:
    """A verdict that nobody explains is half an error."""
    assert SHOWN.keys() == TEXTS.keys()


@pytest.mark.parametrize("title", TEXTS)
def test_a_text_is_as_the_page_shows_it(title: str) -> None:
    """Word for word."""
    assert TEXTS[title]() == SHOWN[title]
