"""How ranks leave: what others read of it while they wait, and which of several errors is the cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from distmetrics.comm.verdict import Departure, Outcome, settle
from distmetrics.errors import DivergedError, PeerLostError
from distmetrics.guard.store import Tombstones
from distmetrics.launch.joining import meet


def test_departures_are_handed_out_in_order() -> None:
    """Two views of one store see the same; the first one is the cause."""
    store = dist.HashStore()
    writer, reader = Tombstones(store), Tombstones(store)
    assert reader.published() == []
    gone = [Departure(2, "raised KeyError", True, {"world": 4}), Departure(0, "has returned", False, {"world": 7})]
    for departure in gone:
        writer.leave(departure)
    assert reader.published() == gone == writer.published()


def test_who_speaks_for_a_rank_does_not_overwrite_the_ranks_own_words() -> None:
    """A rank that raised says why; its exit code says less."""
    departures = Tombstones(dist.HashStore())
    departures.leave(Departure(1, "raised KeyError", failed=True))
    departures.leave_for(1, "ended with exit code 1")
    departures.leave_for(2, "was killed by SIGKILL")
    assert [(gone.rank, gone.why) for gone in departures.published()] == [
        (1, "raised KeyError"),
        (2, "was killed by SIGKILL"),
    ]


class _SlowToLook:
    """A store of which one rank's first look is over before the last rank came, failed, and said so."""

    def __init__(self, store: Any, meanwhile: Callable[[], None]) -> None:
        self.store, self.meanwhile = store, meanwhile

    def check(self, keys: list[str]) -> bool:
        found = self.store.check(keys)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return bool(found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@pytest.mark.parametrize("came", [True, False])
def test_a_rank_that_failed_after_all_had_come_does_not_undo_the_meeting(came: bool) -> None:
    """The last to come may fail between another's two looks, at who is in and at who has left."""
    store, departures = dist.HashStore(), Tombstones(dist.HashStore())

    def comes_and_fails() -> None:
        if came:
            meet(store, departures, 1, 2)
        departures.leave(Departure(1, "raised KeyError", failed=True))

    slow = _SlowToLook(store, comes_and_fails)
    if came:
        meet(slow, departures, 0, 2)
        return
    with pytest.raises(PeerLostError, match="rank 1 failed before the world was complete: raised KeyError"):
        meet(slow, departures, 0, 2)


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        ([PeerLostError("x"), DivergedError("y"), KeyError("z")], 2),
        ([PeerLostError("x"), DivergedError("y"), None], 1),
        ([None, PeerLostError("x"), PeerLostError("y")], 1),
        ([ValueError("first"), KeyError("second"), None], 0),
    ],
)
def test_settle_raises_the_cause(errors: list[Exception | None], cause: int) -> None:
    """Ranks that were let down come last, then ranks that waited in vain; among equals the lowest rank."""
    ended = [Outcome(rank, error=error) for rank, error in enumerate(errors)]
    with pytest.raises(type(errors[cause])) as caught:
        settle(ended)
    assert caught.value is errors[cause]
    assert caught.value.__notes__[0] == f"raised on rank {cause}"
