"""Who the ranks of a job are, as processes: for when the job's store can't be asked any more."""

import logging
import math
import time
from collections.abc import Mapping

from distmetrics.errors import who
from distmetrics.liveness.guard_store import ALL_ASK, GuardStore
from distmetrics.liveness.process_info import process_state
from distmetrics.liveness.rank_status import Identity, RankStatus
from distmetrics.liveness.settings import MODE

GUARDED = 30.0  # seconds after which a rank without a guard is told of
_log = logging.getLogger("distmetrics.guard")


class Roster:
    """The ranks that have a guard.

    Args:
        store: where each says so.
        me: this rank.
        counts: how many calls each group has made by its name, as it goes on.
    """

    def __init__(self, store: GuardStore, me: Identity, counts: Mapping[str, int]) -> None:
        self._store, self._me, self._counts = store, me, counts
        self._known: dict[int, RankStatus] = {}
        self._has_joined = self._is_complete = False
        self._complete_by = math.inf

    def join(self) -> None:
        """Say once that this rank has a guard."""
        if not self._has_joined:
            self._store.publish(self._me.status(None))
            self._store.count("guards", 1)
            self._has_joined = True

    def read(self) -> None:
        """Read who the others are until all are known; warn of those who stay without a guard.

        In the second call of all ranks, each has made a communicator for the first: whoever is
        missing much later could not connect to the store.
        """
        if self._is_complete:
            return
        size, now = self._me.world_size, time.monotonic()
        if size <= ALL_ASK:
            self._known = self._store.statuses()
        count = len(self._known) or self._store.count("guards")
        if self._complete_by == math.inf and self._counts.get(self._me.world, 0) > 1:
            self._complete_by = now + GUARDED
        self._is_complete = count == size or now > self._complete_by
        if self._is_complete and count < size:
            missing = [rank for rank in range(size) if rank not in self._known]
            warn_of_missing_guard(who(missing) if self._known else f"{size - count} ranks")

    def gone(self) -> list[int]:
        """Return the ranks of this machine whose processes are gone, without asking the store."""
        return [rank for rank in self._known if self._state(rank) == "gone"]

    def rank_0_is_down(self) -> bool:
        """True if rank 0, which may host the store, is here, and its process gone or stopped."""
        return self._state(0) in ("gone", "stopped")

    def _state(self, rank: int) -> str:
        status = self._known.get(rank)
        if status is None or status.machine != self._me.machine or not status.machine:
            return "elsewhere"
        return process_state(status.pid, status.born)


def warn_of_missing_guard(ranks: str) -> None:
    """Say in the log which ranks have no guard."""
    text = (
        "no guard watches %s: the connection to the job's store takes long, or %s=off is set there"
    )
    _log.warning(text, ranks, MODE)
