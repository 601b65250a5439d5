"""Warn where samples count more than once: loaders that repeat some, ranks that hold the same data.

The loader that was read last is known, and has as many batches as a metric that it fed has updates.
Ranks that hold the same data have sent the same: several numbers, or many large counts, since small
counts may be equal by chance, and one number by nature, as a learning rate is. In doubt nothing is
said: a right program must never be warned.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
import weakref
from collections.abc import Iterator, Sequence
from traceback import walk_stack
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import DataLoader

from distmetrics.call_site import call_site
from distmetrics.collectives.buckets import to_bytes
from distmetrics.collectives.header import Problem
from distmetrics.comm.communicator import Communicator
from distmetrics.data.rank_loader import reading
from distmetrics.data.repeats import RepeatedSamplesWarning, Repeats, check
from distmetrics.data.unwrap import active_loader, inner_loader
from distmetrics.errors import Site, StateError, rank_ranges
from distmetrics.guard.settings import MODE, current_settings
from distmetrics.metrics.metric_set import MetricSet
from distmetrics.metrics.plan import SyncPlan

Runs = Sequence[tuple[Tensor, Tensor]]
_SAMPLE = 256  # bytes of each run
_LOOKED_AT = 4096  # numbers of each state: far more than it takes
_ENOUGH = 60  # bits
_FRACTION = 20  # bits of a number that is no integer
_SHOWN = 4  # groups of ranks in a warning
_TRAINER = "transformers.trainer"
_INSTEAD = {  # what of ours is for the loaders of a framework
    "accelerate": "integrations.accelerate.prepare(accelerator, loader)",
    _TRAINER: "integrations.transformers.attach(trainer, metrics)",
    "lightning.fabric": "integrations.fabric.setup_dataloaders(fabric, loader)",
    "lightning.pytorch": "integrations.lightning.SyncMetrics() as a callback",
    "pytorch_lightning": "integrations.lightning.SyncMetrics() as a callback",
}
_shown_already: dict[Any, Any] = {}  # as Python keeps it for each module
_told: weakref.WeakSet[Any] = weakref.WeakSet()  # loaders


class LoaderPass(NamedTuple):
    """A pass over a loader that repeats samples."""

    loader: weakref.ref[Any]
    data: str  # the type of its data set
    known: Repeats
    is_asked: bool  # the user says that it fed the metrics
    going_on: set[int]  # identities of metrics that were synced with fewer updates


def note(loader: Any, *, is_asked: bool = False) -> None:
    """Note for the next sync of this rank that it reads a loader, or says that it did."""
    reading.last = None
    try:
        known = check(loader)
        is_told = loader in _told
    except Exception:  # noqa: BLE001  (loaders of the user's may raise anything)
        return
    # A trainer's compute_metrics may update a metric once too, with rows that it gathered.
    is_unsure = known.is_drawn or (known.batches == 1 and _is_in(_TRAINER))
    if known.repeated and not is_told and (is_asked or not is_unsure):
        data = type(loader.dataset).__name__
        reading.last = LoaderPass(weakref.ref(loader), data, known, is_asked, set())


def _is_in(module: str) -> bool:
    """True if code of a module is under way in this thread."""
    return any(frame.f_globals.get("__name__") == module for frame, _ in walk_stack(None))


_iter = DataLoader.__iter__


def _iter_and_note(self: DataLoader[Any]) -> Iterator[Any]:
    active = active_loader()
    note(self if inner_loader(active) is not self else active)
    return _iter(self)


if os.environ.get(MODE, "").strip().lower() != "off":
    DataLoader.__iter__ = _iter_and_note  # type: ignore[method-assign,assignment]


def warn_of_repeats(metrics: MetricSet, comm: Communicator) -> Problem | None:
    """Warn once of a loader that repeats samples, if it fed the metrics."""
    seen: LoaderPass | None = reading.last
    if seen is None or seen.known.world_size != comm.world_size or not _fed(metrics, seen):
        return None
    own = [instead for package, instead in _INSTEAD.items() if package in sys.modules]
    what = f"{seen.known.repeated} of {seen.known.dealt} samples that a loader of a {seen.data} "
    what += "dealt out are repeats"
    do = f"evaluate with distmetrics.{', or distmetrics.'.join(['data.exact(loader)', *own])}."
    problem = _warned(what, do, comm)
    if problem is None:
        reading.last = None
        if (loader := seen.loader()) is not None:
            _told.add(loader)
    return problem


def _fed(metrics: MetricSet, seen: LoaderPass) -> bool:
    """True if a metric has as many updates as the loader has batches, or does not count them.

    Those that were synced before in this pass go on counting, as metrics of training do.
    """
    if seen.is_asked or active_loader() is seen.loader() is not None:  # Accelerate's loop goes on
        return seen.is_asked
    fed = False
    for target, count in zip(metrics.targets, metrics.updates, strict=True):
        is_counted, identity = bool(target.adapter.counter), id(target.metric)
        if is_counted and 0 < count < seen.known.batches:
            seen.going_on.add(identity)
        fed |= not is_counted or (count == seen.known.batches and identity not in seen.going_on)
    return fed


def _warned(what: str, do: str, comm: Communicator) -> Problem | None:
    """Warn on rank 0; return the problem, on every rank, where that is an error."""
    mode, site, text = current_settings().mode, call_site(), f"{what}: {do}"
    if mode == "off" or site is None:
        return None
    if mode == "strict" or _is_error(text, site):
        return Problem("StateError", what, do)
    if comm.rank == 0:
        where = site.file, site.line
        warnings.warn_explicit(text, RepeatedSamplesWarning, *where, registry=_shown_already)
    return None


def _is_error(text: str, site: Site) -> bool:
    """True if the user has made a warning an error: by ``python -W error``, say."""
    module = site.file.removesuffix(".py")
    for action, message, category, place, line in warnings.filters:
        if (
            issubclass(RepeatedSamplesWarning, category)
            and (message is None or message.match(text))
            and (place is None or place.match(module))
            and line in (0, site.line)
        ):
            return action == "error"
    return False


def warn_of_duplicates(plan: SyncPlan, runs: Runs, comm: Communicator) -> None:
    """Warn that ranks hold the same data, which a sync over all of them counts more than once."""
    groups = _duplicates(plan, runs)
    if not groups:
        return
    if (refusal := comm.duplicates(groups[0])) is not None:
        raise refusal
    shown = [rank_ranges(comm.members[rank] for rank in group) for group in groups[:_SHOWN]]
    what = f"ranks {' and '.join(shown)} hold the same data: it is counted {len(groups[0])} times"
    do = "say distmetrics.layout(...) what the ranks hold, or deal the samples out to all of them."
    if _warned(what, do, comm) is not None:
        raise StateError(what, do=do, rank=comm.rank)


def _duplicates(plan: SyncPlan, runs: Runs) -> list[list[int]]:
    """Return the groups of ranks that hold the same data; [] unless all with data are in some."""
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for start in (-_SAMPLE, None):  # a few bytes first: most ranks differ in them
        groups = {}
        for rank in sorted(set().union(*plan.updated)):
            key = tuple(to_bytes(run[start:]) for run in runs[rank])
            groups.setdefault(key, []).append(rank)
        if len(sizes := set(map(len, groups.values()))) != 1 or sizes == {1}:
            return []
    tells = all(_tells(plan, runs, group[0]) for group in groups.values())
    return [*groups.values()] if tells else []


def _tells(plan: SyncPlan, runs: Runs, rank: int) -> bool:
    """True if a rank has data that another rank hardly has by chance."""
    sent, (inline, bulk) = plan.sent[rank], runs[rank]
    tensors = sent.bulk.unpack(bulk) | (sent.inline.unpack(inline) if plan.is_inline else {})
    values: set[float] = set()
    for path, tensor in tensors.items():
        state = plan.states.get(path)  # None for sizes
        if state and state.kind not in ("object", "each") and not tensor.is_complex():
            values.update(tensor.view(-1)[:_LOOKED_AT].double().tolist())
    finite = filter(math.isfinite, values)  # a count says what it is, in bits
    bits = sum(_FRACTION if value % 1 else math.log2(1 + abs(value)) for value in finite)
    return bits >= _ENOUGH
