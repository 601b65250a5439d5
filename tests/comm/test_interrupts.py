"""An interrupt in a call, caught: never a wrong value, never a hang, and the same error on every rank."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist

import distmetrics as dm
from distmetrics.guard.watchdog import Watchdog
from distmetrics.testing import run
from tests.comm.striking import CALLS, Stop, expected, steps

# Python drops an exception that strikes while a generator is closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
EVERY = 41  # of the places at which a signal's handler can run, one in so many is tried; of all_reduce each
OUT_OF_STEP = re.compile(
    r"DivergedError: ranks? 1 left a call by (Stop|an exception) and went on, so the ranks are out"
)


def judged(kind: str, ranks: list[Any], repeats: bool = False, alike: bool = True) -> set[str]:
    """Assert that no value is wrong, and that all ranks are told the same; return the errors' headlines.

    After its first error every later call of a rank raises it again.
    """
    texts = []
    for ended, _ in ranks:
        errors = [at for at, each in enumerate(ended) if isinstance(each, str) and each != "stopped"]
        texts.append({ended[at].partition("\n")[0] for at in errors})
        assert all(isinstance(each, str) for each in ended[errors[0] if errors else len(ended) :]), ended
        values = [each for each in ended if not isinstance(each, str)] if repeats else ended
        for step, each in enumerate(values):
            assert isinstance(each, str) or each == expected(kind, len(ranks), step), (step, ended)
    assert all(each == texts[0] if alike else bool(each) == bool(texts[0]) for each in texts), texts
    return texts[0]


@pytest.mark.parametrize(
    ("kind", "repeats"), [*((kind, False) for kind in CALLS), *((kind, True) for kind in CALLS if "sync" not in kind)]
)
def test_struck_at_any_place(kind: str, repeats: bool) -> None:
    """In the second of four calls that nothing tells apart but their number.

    The rank goes on, or makes the call again, which the others have left behind or have not.
    """
    place, came = 1, True
    while came:
        ended = dm.ThreadWorld(2).outcomes(steps, kind, {1: (1, place)}, repeats, limit=30)
        ranks = [outcome.value for outcome in ended]
        came = ranks[1][1]
        headlines = judged(kind, ranks, repeats)
        if not repeats and "sync" not in kind and came:  # else the rounds may have been over
            assert len(headlines) == 1
            assert all(map(OUT_OF_STEP.match, headlines))
        place += 1 if kind == "all_reduce" and not repeats else EVERY
    assert place > 5 * EVERY


def test_both_ranks_struck_at_any_two_places() -> None:
    """In the same call and in two that follow each other; each rank elsewhere in its call."""
    for kind in ("all_reduce", "large all_reduce"):
        for first in range(1, 900, 167):
            for second in range(1, 900, 191):
                struck = {0: (1 + first % 2, first), 1: (1, second)}
                ended = dm.ThreadWorld(2).outcomes(steps, kind, struck, limit=30)
                judged(kind, [outcome.value for outcome in ended], alike=False)  # each tells of its own


def on_processes(comm: Any, places: range) -> list[Any]:
    """Strike rank 1 at each place, in a large call and in a small one."""
    results = []
    for place in places:
        for kind in ("small sync", "sync of all", "large all_reduce"):
            own = dm.GroupCommunicator(dist.new_group([*range(comm.world_size)]))  # the last one is broken
            results.append((kind, steps(own, kind, {1: (1, place)})))
    return results


@pytest.mark.gloo
def test_struck_on_processes() -> None:
    ended = run(3, on_processes, range(1, 900, 149), backend="gloo", limit=120)
    for ranks in zip(*ended, strict=True):
        headlines = judged(ranks[0][0], [rank for _, rank in ranks])
        assert all(map(OUT_OF_STEP.match, headlines))
    assert ended


def all_ranks_stopped(comm: Any) -> Any:
    """Every rank in the same call, before its first exchange: all go on in step."""
    for error in (Stop, TimeoutError):
        with pytest.raises(error):
            dm.all_reduce(Raising(error), comm=comm)
    return dm.all_reduce(torch.tensor(comm.rank)).item()


class Raising:
    """Raises where its numbers are asked for."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __len__(self) -> int:
        raise self.error

    __getitem__ = __len__


def test_all_ranks_stopped_in_one_call_are_in_step() -> None:
    assert run(2, all_ranks_stopped) == [1, 1]


class GoneStore:
    """Departures of a job whose store went with the rank that hosted it."""

    store: Any = None

    def before(self, *_: object) -> Any:
        raise RuntimeError("Broken pipe")

    published = before


def test_a_lost_store_says_of_nobody_that_he_has_left() -> None:
    """Not its raw RuntimeError: a lost peer and a lost store are one error."""
    guard = Watchdog.__new__(Watchdog)
    guard._board = GoneStore()  # type: ignore[assignment]
    assert guard.departed("waits in barrier") is None
