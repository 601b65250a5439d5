"""Tombstones: a rank that leaves says so in the job's store, for those who still wait for it.

The store is hosted outside the ranks wherever we launch them. Whoever waits reads it from time to
time, so "rank 1 raised ValueError" reaches it within a fraction of a second instead of a time-out.
A rank that is killed cannot write; whoever watches its process writes for it.
"""

from __future__ import annotations

import time
from typing import Any

from distmetrics.comm.verdict import Departure
from distmetrics.errors import PeerLostError
from distmetrics.guard.store import read
from distmetrics.message import encode

RAISING_GRACE = 5.0  # seconds that ranks get to raise by themselves once another has failed
LAST_WORDS = 2.0  # seconds that a rank gets to write its report once it is asked to end


class Tombstones:
    """The departures in a ``torch.distributed`` store, as far as this rank has read them."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self._read: list[Departure | None] = []

    def leave(self, departure: Departure) -> None:
        """Publish that a rank has left."""
        number = self.store.add("left", 1)
        self.store.set(f"left/{number}", encode(departure))

    def leave_for(self, rank: int, why: str) -> None:
        """Publish for ``rank``, which failed, unless it said so itself."""
        if all(departure.rank != rank for departure in self.published()):
            self.leave(Departure(rank, why, failed=True))

    def published(self) -> list[Departure]:
        """Return every departure published so far, oldest first."""
        while self.store.check([key := f"left/{len(self._read) + 1}"]):
            self._read.append(read(Departure, self.store.get(key)))
        return [departure for departure in self._read if departure is not None]


def meet(store: Any, tombstones: Tombstones, rank: int, world_size: int) -> None:
    """Return once every rank has called this with the same store, or raise once one has failed.

    Without it a rank that fails at once would break the set-up of those that still connect.

    Raises:
        PeerLostError: a rank failed before all had come.
    """
    if store.add("joined", 1) == world_size:
        store.set("all in", "")
    while not store.check(["all in"]):
        failed = [departure for departure in tombstones.published() if departure.failed]
        # Looked at again: one that failed after all had come does not undo the meeting.
        if failed and not store.check(["all in"]):
            text = f"rank {failed[0].rank} failed before the world was complete: {failed[0].why}"
            raise PeerLostError(text, rank=rank, peers=[failed[0].rank])
        time.sleep(0.002)
