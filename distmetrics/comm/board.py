"""The notice board: where a rank that leaves says so, for those who still wait for it.

A small record in the job's key-value store, which is hosted outside the ranks wherever we launch
them. Whoever waits looks there from time to time, so "rank 1 raised ValueError" reaches it within a
fraction of a second instead of a time-out. A rank that is killed cannot write; whoever watches its
process writes for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from distmetrics.comm.base import raise_site
from distmetrics.errors import PeerLostError


@dataclass(frozen=True, slots=True)
class Departure:
    """That ``rank`` left: after how many transport calls, why, and whether that was a failure.

    ``calls`` are those of the group of all ranks; ``groups`` has those of others by their names,
    where they are known.
    """

    rank: int
    calls: int
    why: str
    failed: bool
    groups: dict[str, int] = field(default_factory=dict)

    def calls_of(self, group: str, world: str) -> int | None:
        """Return how many calls of a group the rank made before it left; None where that is not
        known.
        """
        return self.groups.get(group, self.calls if group == world else None)


def reason(error: BaseException | None) -> str:
    """Say in a few words why a rank leaves: for what it raised, or for no error."""
    if error is None:
        return "has returned"
    first_line = str(error).partition("\n")[0]
    site = getattr(error, "site", None) or raise_site(error.__traceback__)
    return f"raised {type(error).__name__}: {first_line}  {site or ''}".rstrip()


class Board:
    """One rank's view of the departures in a ``torch.distributed`` store."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self._seen: list[Departure] = []

    def leave(
        self,
        rank: int,
        why: str,
        *,
        failed: bool,
        calls: int = 0,
        groups: Mapping[str, int] | None = None,
    ) -> None:
        """Publish that ``rank`` has left after ``calls`` transport calls."""
        number = self.store.add("left", 1)
        departure = Departure(rank, calls, why, failed, dict(groups or {}))
        self.store.set(f"left/{number}", json.dumps(asdict(departure)))

    def leave_for(self, rank: int, why: str) -> None:
        """Publish for ``rank``, which failed, unless it said so itself."""
        if all(departure.rank != rank for departure in self.departures()):
            self.leave(rank, why, failed=True)

    def departures(self) -> list[Departure]:
        """Return every departure published so far, oldest first."""
        while self.store.check([key := f"left/{len(self._seen) + 1}"]):
            self._seen.append(Departure(**json.loads(self.store.get(key))))
        return list(self._seen)

    def missing(self, call: int) -> list[Departure]:
        """Return the departures of ranks that will never make transport call number ``call`` (from
        1).
        """
        return [departure for departure in self.departures() if departure.calls < call]


def meet(store: Any, board: Board, rank: int, world_size: int) -> None:
    """Return once every rank has called this with the same store, or raise once one has failed.

    Without it a rank that fails at once would break the set-up of those that still connect.

    Raises:
        PeerLostError: a rank failed before all had come.
    """
    if store.add("joined", 1) == world_size:
        store.set("all in", "")
    while not store.check(["all in"]):
        lost = [departure for departure in board.departures() if departure.failed]
        if lost and not store.check(
            ["all in"]
        ):  # one that failed after all had come is no matter of this
            text = f"rank {lost[0].rank} failed before the world was complete: {lost[0].why}"
            raise PeerLostError(text, rank=rank, peers=[lost[0].rank])
        time.sleep(0.002)
