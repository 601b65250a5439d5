"""Every text that the guard ends a wait with, made by its own code, is as texts.md shows it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from distmetrics.collectives.exchange import refuse_histories
from distmetrics.comm.communicator import Call, break_after
from distmetrics.comm.process_group import PendingCall
from distmetrics.comm.verdict import Departure
from distmetrics.errors import Site
from distmetrics.guard.settings import Settings
from distmetrics.guard.store import Tombstones
from distmetrics.guard.watchdog import Watchdog
from distmetrics.testing import outcomes
from tests.guard.simulated import Job


def _ended(*waits: dict[str, Any], left: Departure | None = None, state: str = "", **rank_1: Any) -> str:
    """What ranks that wait are told; rank 1 may have left, be in a state, or be elsewhere."""
    job = Job(2)
    if left is not None:
        Tombstones(job.store).leave(left)
    if state:
        job.states[1] = state
    vars(job.ranks[1]).update(rank_1)
    for rank, wait in zip(job.ranks, waits, strict=False):
        rank.wait(**wait)
    job.run(12.0)
    assert job.ranks[0].verdict is not None
    return str(job.ranks[0].verdict)


def _silent_store() -> str:
    """A store that has been asked, and has not answered."""
    watchdog = Watchdog.__new__(Watchdog)
    rank = Job(2).ranks[0]
    watchdog._me, watchdog._store, watchdog.settings = rank.me, rank.store, Settings()
    watchdog._known = {}
    watchdog._store._since = time.monotonic() - 60.2
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

    def leave(comm: Any) -> str:
        break_after(comm, call, "TimeoutError")
        return str(comm.state.verdict)

    with mock.patch("distmetrics.comm.communicator.call_site", return_value=None):
        return outcomes(2, leave)[1].value


FAILED = Departure(1, "raised ValueError: a bad batch  train.py:7 in step", failed=True)
RETURNED = Departure(1, "has returned", failed=False)
IN_TORCH = {"where": "is in torch.distributed.all_reduce  train.py:3 in main", "still": 1.0, "issued": {"world": 4}}
TEXTS: dict[str, Callable[[], str]] = {
    "A rank is late": lambda: _ended({"timeout": 10}),
    "All came, and it does not end": lambda: _ended({"timeout": 10}, {"timeout": 10}),
    "A rank failed": lambda: _ended({}, left=FAILED),
    "A rank has returned": lambda: _ended({}, left=RETURNED),
    "A process is gone": lambda: _ended({}, state="gone"),
    "A process is stopped": lambda: _ended({}, state="stopped"),
    "A deadlock of groups": lambda: _ended({"group": "a"}, {"group": "b"}),
    "Different calls in the same place": lambda: _ended({"kind": "all_reduce sum"}, {"kind": "barrier"}),
    "A collective of torch's own": lambda: _ended({}, **IN_TORCH),
    "Another number of torch's own": lambda: _ended({"counts_exactly": True}, {"counts_exactly": True, "issued": 4}),
    "The store does not answer": _silent_store,
    "Direct calls that differ": _direct,
    "A call was interrupted": _interrupted,
}
TEXTS_FILE = Path(__file__).with_name("texts.md").read_text()
SHOWN = dict(re.findall(r"^## (.+?)\n.*?^```text\n(.*?)\n```", TEXTS_FILE, flags=re.MULTILINE | re.DOTALL))
PAGE = (Path(__file__).parents[2] / "docs/errors.md").read_text()
ROWS = [cell.split(" … ") for cell in re.findall(r"^\| ([^|`]+) \| ", PAGE, flags=re.MULTILINE) if cell != "text"]


def test_each_text_has_its_place_in_the_file_and_no_other_has() -> None:
    assert SHOWN.keys() == TEXTS.keys()


@pytest.mark.parametrize("title", TEXTS)
def test_a_text_is_as_the_file_shows_it_and_the_page_explains_it(title: str) -> None:
    """Word for word; a verdict that nobody explains is half an error."""
    text = TEXTS[title]()
    assert text == SHOWN[title]
    first = text.partition("\n")[0]
    assert [row for row in ROWS if all(part in first for part in row)] != []
