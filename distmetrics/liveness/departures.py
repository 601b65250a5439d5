"""Departures: a rank that leaves says so in the job's store, for those who still wait for it.

The store is hosted outside the ranks wherever we launch them. Whoever waits reads it from time to
time, so "rank 1 raised ValueError" reaches it within a fraction of a second instead of a time-out.
A rank that is killed cannot write; whoever watches its process writes for it.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from distmetrics.comm.base import raise_site
from distmetrics.errors import PeerLostError

NAMING_GRACE = 2.0  # seconds that a broken connection waits for somebody to say who has left
RAISING_GRACE = 5.0  # seconds that ranks get to raise by themselves once another has failed


@dataclass(frozen=True, slots=True)
class Departure:
    """That a rank left, and why.

    Attributes:
        rank: of the job.
        calls: how many transport calls of the group of all ranks it has made.
        why: in a few words.
        failed: whether it failed, or came to its end.
        groups: the number of calls of each group by its name, where they are known.
    """

    rank: int
    calls: int
    why: str
    failed: bool
    groups: dict[str, int] = field(default_factory=dict)

    def calls_of(self, group: str, world: str) -> int | None:
        """Return how many calls of a group the rank has made; None where that is not known."""
        return self.groups.get(group, self.calls if group == world else None)


def reason(error: BaseException | None) -> str:
    """Return in a few words why a rank leaves: what it raised, or that it has returned."""
    if error is None:
        return "has returned"
    first_line = str(error).partition("\n")[0]
    site = getattr(error, "site", None) or raise_site(error.__traceback__)
    return f"raised {type(error).__name__}: {first_line}  {site or ''}".rstrip()


def exit_reason(code: int | None) -> str:
    """Return in a few words how a process ended.

    >>> exit_reason(-9), exit_reason(3)
    ('was killed by SIGKILL', 'ended with exit code 3')
    """
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


class Departures:
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
        if all(departure.rank != rank for departure in self.published()):
            self.leave(rank, why, failed=True)

    def published(self) -> list[Departure]:
        """Return every departure published so far, oldest first."""
        while self.store.check([key := f"left/{len(self._seen) + 1}"]):
            self._seen.append(Departure(**json.loads(self.store.get(key))))
        return [*self._seen]

    def before(self, call: int) -> dict[int, Departure]:
        """Return the departures of ranks that will never make transport call ``call`` (from 1)."""
        return {gone.rank: gone for gone in self.published() if gone.calls < call}


def meet(store: Any, departures: Departures, rank: int, world_size: int) -> None:
    """Return once every rank has called this with the same store, or raise once one has failed.

    Without it a rank that fails at once would break the set-up of those that still connect.

    Raises:
        PeerLostError: a rank failed before all had come.
    """
    if store.add("joined", 1) == world_size:
        store.set("all in", "")
    while not store.check(["all in"]):
        failed = [departure for departure in departures.published() if departure.failed]
        # Looked at again: one that failed after all had come does not undo the meeting.
        if failed and not store.check(["all in"]):
            text = f"rank {failed[0].rank} failed before the world was complete: {failed[0].why}"
            raise PeerLostError(text, rank=rank, peers=[failed[0].rank])
        time.sleep(0.002)
