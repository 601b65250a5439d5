"""Metrics that are being synced are marked: no second sync may see them half-way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distmetrics.collectives.manifest import Problem
from distmetrics.state.metric_set import MetricSet

Mark = Callable[[MetricSet, str], Problem | None]
_in_sync: set[int] = set()  # identities of the metrics that some thread is syncing
_lock = threading.Lock()


@contextmanager
def marked() -> Iterator[Mark]:
    """Give what marks metrics as being synced until the block ends.

    It returns the problem with metrics that are marked already.
    """
    identities: set[int] = set()

    def mark(local: MetricSet, kind: str) -> Problem | None:
        problem = Problem(
            "StateError",
            f"a metric in this {kind} is being synced already: another rank, a thread of this "
            "process, has the same object, or the call is inside of a block of synced(…)",
            "make the metrics in the function that every rank runs, or copy.deepcopy them there; "
            "in the block call compute() alone.",
        )
        identities.update(id(target.metric) for target in local.targets)
        with _lock:
            is_shared = not _in_sync.isdisjoint(identities)
            _in_sync.update(identities)
        return problem if is_shared else None

    try:
        yield mark
    finally:
        with _lock:
            _in_sync.difference_update(identities)
