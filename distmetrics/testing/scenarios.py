"""What each rank does in a run: functions of a :class:`Rank`, which can be sent to processes.

Most return a list of :class:`Same`: what the rank has found that must be equal.
"""

import contextlib
import copy
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from distmetrics.comm.communicator import Communicator
from distmetrics.launch.spawn import pickled
from distmetrics.layouts.communicator import layout
from distmetrics.metrics.adapters import targets
from distmetrics.metrics.sync import sync_and_compute, synced
from distmetrics.testing.shards import Batch
from distmetrics.testing.subject import Subject


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a run: its communicator, the metric that is judged, its share of the batches."""

    comm: Communicator
    subject: Subject
    batches: Sequence[Batch]

    @property
    def halves(self) -> tuple[Sequence[Batch], Sequence[Batch]]:
        """The batches in two parts, the first one not the smaller one."""
        half = (len(self.batches) + 1) // 2
        return self.batches[:half], self.batches[half:]

    def filled(self) -> Any:
        """Return a metric that was updated with the rank's batches."""
        return self.subject.filled(self.batches)

    def synced(self, metric: Any) -> Any:
        """Return the value over all ranks, by the sync that is judged."""
        return self.subject.synced(metric, self.comm)

    def state(self, metric: Any) -> dict[str, Any]:
        """Return a copy of the local state."""
        return self.subject.state(metric)


Scenario = Callable[[Rank], Any]


class Same(NamedTuple):
    """Two things that a rank has found, which must be equal.

    Attributes:
        what: what they are, for the report.
        bitwise: whether they must have the same bits, and not only values that are close.
    """

    what: str
    expected: Any
    got: Any
    bitwise: bool = True


class Interruption(Exception):  # noqa: N818  (no error: it is thrown on purpose, and caught)
    """Thrown into a sync, to see whether the local state comes back."""


def plain(rank: Rank) -> Any:
    """Update, sync and compute; return the value."""
    return rank.synced(rank.filled())


def twice(rank: Rank) -> list[Same]:
    """Sync and compute, and once more."""
    metric = rank.filled()
    return [Same("the value of the second sync", rank.synced(metric), rank.synced(metric))]


def observed(rank: Rank) -> Any:
    """Sync and compute in the middle, then go on; return the value at the end."""
    first, rest = rank.halves
    metric = rank.subject.filled(first)
    # Half of the data may be too little for a value.
    with contextlib.suppress(ValueError, RuntimeError, IndexError):
        rank.synced(metric)
    rank.subject.update(metric, rest)
    return rank.synced(metric)


def restored(rank: Rank) -> list[Same]:
    """Compare the local state before a sync with that after it, and after an error inside one."""
    metric = rank.filled()
    before = rank.state(metric)
    rank.synced(metric)
    found = [Same("the local state after a sync", before, rank.state(metric))]
    metric = rank.filled()
    if _interrupted(rank, metric):
        found.append(Same("the local state after an error in a sync", before, rank.state(metric)))
    return found


def _interrupted(rank: Rank, metric: Any) -> bool:
    """Raise an error in the middle of a sync; return False if this metric has no way for that."""

    def interrupt() -> Any:
        raise Interruption

    with contextlib.suppress(Interruption):
        if rank.subject.sync == "distmetrics":
            with synced(metric, comm=rank.comm):
                interrupt()
        if not hasattr(metric, "_wrap_compute"):
            return False
        metric._wrap_compute(interrupt)()
    return True


def reset(rank: Rank) -> list[Same]:
    """Use a metric, reset it, and use it again."""
    metric = rank.filled()
    first = rank.synced(metric)
    metric.reset()
    new, after = rank.state(rank.subject.make()), rank.state(metric)
    rank.subject.update(metric, rank.batches)
    return [
        Same("the state after reset()", new, after),
        Same("the value of one used again after reset()", first, rank.synced(metric), False),
    ]


def round_trips(rank: Rank) -> list[Same]:
    """Copy the metric in every way in the middle of its batches, and in the middle of a sync."""
    first, rest = rank.halves
    begun = rank.subject.filled(first)
    copies = {
        "pickle": pickle.loads(pickled(begun)),  # noqa: S301  (our own bytes)
        "deepcopy": copy.deepcopy(begun),
        "state_dict": _through_state_dict(rank, begun),
    }
    values: dict[str, Any] = {}
    for way, other in copies.items():
        if other is not None:
            rank.subject.update(other, rest)
            values[f"a copy by {way}"] = rank.synced(other)
    metric = rank.filled()
    if rank.subject.sync == "distmetrics":
        with synced(metric, comm=rank.comm):
            inside = copy.deepcopy(metric)
        values["a copy in mid-sync"] = rank.subject.value(inside)
        values["what was copied in mid-sync"] = rank.synced(metric)
    expected = plain(rank)
    return [Same(f"the value of {what}", expected, got, False) for what, got in values.items()]


def _through_state_dict(rank: Rank, metric: Any) -> Any:
    if not (hasattr(metric, "state_dict") and hasattr(metric, "load_state_dict")):
        return None
    other = rank.subject.make()
    for each in (metric, other):
        for module in each.modules() if hasattr(each, "modules") else ():
            if hasattr(module, "persistent"):
                module.persistent(True)
    other.load_state_dict(copy.deepcopy(metric.state_dict()))
    return other


def synced_dtypes(rank: Rank) -> list[Same]:
    """Compare dtypes and devices of the local states with those of the states of all ranks."""
    metric = rank.filled()
    before = _dtypes(rank.state(metric))
    with synced(metric, comm=rank.comm):
        after = _dtypes(rank.state(metric))
    # A list without items has no dtype that could be kept.
    kept = {name: after.get(name, "") for name in before}
    return [Same("dtypes of the states of all ranks", before, kept)]


def _dtypes(state: dict[str, Any]) -> dict[str, str]:
    """Return dtypes and devices of the states that hold tensors, by name."""
    dtypes = {}
    for name, value in state.items():
        items = value if isinstance(value, list) else [value]
        kinds = {f"{x.dtype} on {x.device}" for x in items if torch.is_tensor(x)}
        if kinds:
            dtypes[name] = ", ".join(sorted(kinds))
    return dtypes


def in_subgroup(rank: Rank) -> Any:
    """Sync within the group of all ranks but the second one; return the value, and None there."""
    if rank.comm.rank == 1:
        return None
    members = [member for member in range(rank.comm.world_size) if member != 1]
    return sync_and_compute(rank.filled(), comm=rank.comm.transport.subgroup(members))


@dataclass(frozen=True)
class OverLayout:
    """Sync over a layout of all ranks, whose axes mean what their names say; return the value."""

    sizes: tuple[tuple[str, int], ...]

    def __call__(self, rank: Rank) -> Any:
        """Do it on a rank."""
        ranks = layout.of(dict(self.sizes), comm=rank.comm.transport)
        return sync_and_compute(rank.filled(), comm=ranks)


def beside_another(rank: Rank) -> list[Same]:
    """Sync two metrics together, of which one saw half of the data, and then each by itself."""

    def metrics() -> dict[str, Any]:
        return {"whole": rank.filled(), "half": rank.subject.filled(rank.halves[0])}

    together = sync_and_compute(metrics(), comm=rank.comm)
    apart = {name: rank.synced(metric) for name, metric in metrics().items()}
    return [Same("the values of metrics synced together", apart, together)]


def merged(rank: Rank) -> Any:
    """Return a metric that holds the state of all ranks as its own."""
    return _merged(rank, rank.filled())


def prefilled(rank: Rank) -> Any:
    """Sync a metric that holds something already, and stands in the place of the batches."""
    return rank.synced(rank.batches[0])


def _merged(rank: Rank, metric: Any) -> Any:
    with synced(metric, comm=rank.comm):
        other = copy.deepcopy(metric)
    for target in targets(other):
        if target.adapter.flag:
            target.storage[target.adapter.flag] = False
    return other


def doubled(rank: Rank) -> list[dict[str, Any]]:
    """Double the state until counts pass 2²⁴ on rank 0, and add one batch on rank 1.

    Returns: the rank's own state and that of all; nothing for a metric with states of which a sync
    does not make the sum.
    """
    metric = rank.filled()
    kinds = {spec.kind for target in targets(metric) for spec in target.states}
    if kinds - {"sum"}:
        return []
    for _ in range(25):
        metric = _merged(rank, metric)
    if rank.comm.rank:
        metric = rank.subject.filled(rank.batches[:1])
    own = rank.state(metric)
    with synced(metric, comm=rank.comm):
        return [own, rank.state(metric)]
