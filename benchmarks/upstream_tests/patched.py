"""Make torchmetrics' metrics sync through distmetrics: for its own unit tests alone.

``compute()`` and a block of ``sync_context()`` run inside :func:`distmetrics.synced`. ``sync()``
and a forward with ``dist_sync_on_step`` leave the state of all ranks in the metric: distmetrics
makes that state, and torchmetrics keeps the local one, as its own tests ask of ``unsync()``. A
metric that was given a ``dist_sync_fn`` of its own uses that.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from torchmetrics import Metric
from torchmetrics.metric import CompositionalMetric
from torchmetrics.utilities.distributed import gather_all_tensors

from distmetrics import GroupCommunicator, synced

_Context = Callable[..., AbstractContextManager[None]]


def install(tally: Path) -> None:
    """Replace the sync of every metric; each adds a byte to a file in ``tally``."""
    if getattr(Metric, "_synced_by", None) == "distmetrics":
        return
    Metric._synced_by = "distmetrics"  # type: ignore[attr-defined]
    Metric.sync_context = _context(Metric.sync_context, tally)  # type: ignore[assignment, method-assign]
    kinds: list[Any] = [Metric, *_below(Metric)]
    for kind in kinds:  # one overrides it to do nothing
        if "_sync_dist" in vars(kind) and kind is not CompositionalMetric:
            kind._sync_dist = _exchange(kind._sync_dist, tally)


def _below(kind: Any) -> Iterator[Any]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


def syncs(tally: Path) -> int:
    """Return how many syncs all processes have made."""
    return sum(file.stat().st_size for file in tally.iterdir())


def _context(own: _Context, tally: Path) -> _Context:
    """Return what takes the place of ``Metric.sync_context``; where that would raise, it is called.

    The arguments are those of the original, all but the metric by their names in ``asked``.
    """
    known = inspect.signature(own)

    @functools.wraps(own)
    @contextmanager
    def sync_context(self: Metric, *args: Any, **kwargs: Any) -> Iterator[None]:
        bound = known.bind(self, *args, **kwargs)
        bound.apply_defaults()
        asked = bound.arguments
        available = asked["distributed_available"] or self.distributed_available_fn
        is_wanted = asked["should_sync"] and available is not None and available()
        is_plain = asked["should_unsync"] and asked["dist_sync_fn"] is None
        if not is_wanted or self._is_synced or not is_plain:
            with own(self, *args, **kwargs):
                yield
            return
        with _synced(self, asked["process_group"], tally):
            yield

    return sync_context


def _exchange(own: Callable[..., None], tally: Path) -> Callable[..., None]:
    """Return what takes the place of ``_sync_dist``: the state of all ranks is put in, for good."""

    @functools.wraps(own)
    def _sync_dist(
        self: Metric, dist_sync_fn: Any = gather_all_tensors, process_group: Any = None
    ) -> None:
        if dist_sync_fn not in (gather_all_tensors, None):
            own(self, dist_sync_fn, process_group)
            return
        with _synced(self, process_group, tally):
            merged = {name: getattr(self, name) for name in self._reductions}
        for name, value in merged.items():
            setattr(self, name, value)

    return _sync_dist


@contextmanager
def _synced(metric: Metric, process_group: Any, tally: Path) -> Iterator[None]:
    comm = None if process_group is None else GroupCommunicator.of(process_group)
    with synced(metric, comm=comm) as plan:
        if plan is not None:  # more than one rank
            with (tally / str(os.getpid())).open("ab") as file:
                file.write(b".")
        yield
