"""Departures: a rank that leaves says so in the job's store, for those who still wait for it.

The store is hosted outside the ranks wherever we launch them. Whoever waits reads it from time to
time, so "rank 1 raised ValueError" reaches it within a fraction of a second instead of a time-out.
A rank that is killed cannot write; whoever watches its process writes for it.
"""

import json
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from distmetrics.comm.sites import raise_sites
from distmetrics.errors import PeerLostError, in_short

NAMING_GRACE = 2.0  # seconds that a broken connection waits for somebody to say who has left
RAISING_GRACE = 5.0  # seconds that ranks get to raise by themselves once another has failed
LAST_WORDS = 2.0  # seconds that a rank gets to write its report once it is asked to end


@dataclass(frozen=True, slots=True)
class Departure:
    """That a rank left, and why.

    Attributes:
        rank: of the job.
        why: in a few words.
        failed: whether it failed, or came to its end.
        calls: how many calls of each process group it has made, by the group's name; nothing where
            somebody else says that it left.
    """

    rank: int
    why: str
    failed: bool
    calls: Mapping[str, int] = field(default_factory=dict)

    def calls_of(self, group: str) -> int | None:
        """Return how many calls of a group the rank has made; None where that is not known."""
        return self.calls.get(group, None if self.calls else 0)


def reason(error: BaseException | None) -> str:
    """Return in a few words why a rank leaves: what it raised, or that it has returned."""
    if error is None:
        return "has returned"
    site = getattr(error, "site", None) or next(iter(raise_sites(error)), "")
    return f"raised {in_short(error)}  {site}".rstrip()


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

    def leave(self, departure: Departure) -> None:
        """Publish that a rank has left."""
        number = self.store.add("left", 1)
        self.store.set(f"left/{number}", json.dumps(asdict(departure)))

    def leave_for(self, rank: int, why: str) -> None:
        """Publish for ``rank``, which failed, unless it said so itself."""
        if all(departure.rank != rank for departure in self.published()):
            self.leave(Departure(rank, why, failed=True))

    def published(self) -> list[Departure]:
        """Return every departure published so far, oldest first."""
        while self.store.check([key := f"left/{len(self._seen) + 1}"]):
            self._seen.append(Departure(**json.loads(self.store.get(key))))
        return [*self._seen]


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
