"""How many samples a loader gives to the ranks twice, and which loader a rank has read last.

The numbers come from samplers and lengths alone: no data is read, and nothing is imported from the
frameworks. Where their state does not tell, the answer is that nothing is repeated.
"""

import functools
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

from distmetrics.data.rank_loader import RankLoader
from distmetrics.data.sharding import has_order
from distmetrics.data.unwrap import active_loader, inner_loader, is_sharded
from distmetrics.guard.settings import MODE


class RepeatedSamplesWarning(UserWarning):
    """Metrics were synced over a loader that repeats samples, so they count some twice."""


class Repeats(NamedTuple):
    """What all ranks together get in one pass over a loader."""

    dealt: int = 0  # number of samples, with repeats
    repeated: int = 0  # how many of them some rank has got already
    world_size: int = 0  # how many ranks the loader deals out to
    is_drawn: bool = False  # the samples come in a random order, as they do for training
    batches: int = 0  # of each rank


_UNKNOWN = Repeats()


def check(loader: Any) -> Repeats:
    """Return how many samples a loader deals out to all ranks, and how many of them are repeats.

    It is all 0 where that is not known. Known are torch's ``DistributedSampler`` (also Fabric's,
    Lightning's and Ray's) and what Accelerate and Hugging Face's ``Trainer`` make of data with and
    without an order.

    >>> from torch.utils.data import DataLoader, DistributedSampler
    >>> sampler = DistributedSampler(range(597), num_replicas=2, rank=0, shuffle=False)
    >>> check(DataLoader(range(597), batch_size=64, sampler=sampler))[:2]
    (598, 1)
    """
    if isinstance(loader, RankLoader):
        return _UNKNOWN
    while (inner := inner_loader(loader)) is not None:
        if "slice_fn" in vars(loader):
            return _dispatched(loader, inner)
        loader = inner
    if not isinstance(loader, DataLoader):
        return _UNKNOWN
    if not has_order(loader):
        return _of_stream(loader)
    batches = loader.batch_sampler
    for evened in (batches, loader.sampler):
        if is_sharded(evened) and getattr(evened, "even_batches", False):
            return _evened(evened)
    sampler = getattr(batches, "sampler", loader.sampler)
    if isinstance(sampler, DistributedSampler) and (batches is None or _is_plain(batches)):
        return _of_sampler(sampler, batches)
    return _UNKNOWN


def _of_sampler(sampler: DistributedSampler[Any], batches: Any) -> Repeats:
    """Return the repeats of torch's sampler: they are the last sample of some ranks."""
    dataset = getattr(sampler, "dataset", None)
    inside = getattr(dataset, "_sampler", None)  # Lightning's, around any sampler
    if inside is None and type(sampler).__iter__ is not DistributedSampler.__iter__:
        return _UNKNOWN  # a sampler of the user's own
    repeated = max(sampler.total_size - len(sampler.dataset), 0)  # type: ignore[arg-type]
    left_out = 0
    if batches is not None and batches.drop_last:
        left_out = len(sampler) % batches.batch_size
    dealt = sampler.total_size - left_out * sampler.num_replicas
    is_drawn = sampler.shuffle or not (inside is None or isinstance(inside, SequentialSampler))
    world_size = sampler.num_replicas
    size = world_size if batches is None else world_size * batches.batch_size
    return Repeats(dealt, 0 if left_out else repeated, world_size, is_drawn, -(-dealt // size))


def _evened(shard: Any) -> Repeats:
    """Return the repeats of Accelerate's batch sampler, which fills up the last round."""
    batches = shard.batch_sampler
    if not _is_plain(batches) or batches.drop_last or is_sharded(batches.sampler):
        return _UNKNOWN
    is_drawn = not isinstance(batches.sampler, SequentialSampler)
    return _filled(len(batches.sampler), batches.batch_size, shard, is_drawn)


def _of_stream(loader: Any) -> Repeats:
    """Return the repeats of a data set without an order that fills up its last round of batches."""
    shard = loader.dataset
    is_known = is_sharded(shard) and hasattr(shard, "dataset") and hasattr(shard.dataset, "__len__")
    if not is_known or shard.drop_last or loader.drop_last or loader.num_workers:
        return _UNKNOWN
    return _filled(len(shard.dataset), shard.batch_size, shard, _draws(shard.dataset))


def _filled(count: int, size: int, shard: Any, is_drawn: bool) -> Repeats:
    """Return the repeats where ``count`` samples are filled up to whole rounds of batches."""
    if not getattr(shard, "split_batches", False):
        size *= shard.num_processes
    dealt = count + -count % size
    return Repeats(dealt, dealt - count, shard.num_processes, is_drawn, dealt // size)


def _dispatched(loader: Any, base: Any) -> Repeats:
    """Return the repeats of Accelerate's loader that rank 0 reads for all ranks.

    The last round is filled up to a multiple of the number of ranks, by samples of the first.
    """
    if loader._drop_last or getattr(loader, "submesh_tp", None):
        return _UNKNOWN
    batches, data, batch_size = base.batch_sampler, base.dataset, base.batch_size
    if has_order(base):
        if not _is_plain(batches) or is_sharded(batches.sampler):
            return _UNKNOWN
        data, batch_size = batches.sampler, batches.batch_size
        is_drawn = not isinstance(data, SequentialSampler)
    elif not hasattr(data, "__len__") or base.num_workers or batch_size is None:
        return _UNKNOWN
    else:
        is_drawn = _draws(data)
    ranks, count = loader.state.num_processes, len(data)
    size = batch_size if loader.split_batches else batch_size * ranks
    repeated = min(-count % ranks, count)
    return Repeats(count + repeated, repeated, ranks, is_drawn, -(-count // size))


def _is_plain(batches: Any) -> bool:
    """True for a batch sampler of which all that matters is known: torch's own."""
    return type(batches) is BatchSampler


def _draws(dataset: Any) -> bool:
    """True for a data set that draws its order: frameworks give it the epoch, or a generator."""
    return hasattr(dataset, "set_epoch") or hasattr(dataset, "generator")


# What of ours is for the loaders of a framework, by its package.
_INSTEAD = {
    "accelerate": "integrations.accelerate.prepare(accelerator, loader), or "
    "distmetrics.integrations.transformers.attach(trainer, metrics)",
    "lightning": "integrations.lightning.SyncMetrics() as a callback of the trainer, or "
    "distmetrics.integrations.fabric.setup_dataloaders(fabric, loader)",
}
_INSTEAD |= dict.fromkeys(("lightning_fabric", "pytorch_lightning"), _INSTEAD["lightning"])
_told: weakref.WeakSet[Any] = weakref.WeakSet()  # loaders


class Pass(NamedTuple):
    """A pass over a loader that repeats samples."""

    loader: weakref.ref[Any]
    world_size: int
    batches: int | None  # None where the user says that they fed the metrics
    what: str
    do: str

    def is_going_on(self) -> bool:
        """True for a loader of Accelerate whose loop has not ended."""
        return active_loader() is self.loader() is not None

    def told(self) -> None:
        """Say no more of the loader."""
        reading.last = None
        if (loader := self.loader()) is not None:
            _told.add(loader)


class _Reading(threading.local):
    """What a rank, which may be a thread, has begun to read last."""

    last: Pass | None = None


reading = _Reading()


def note(loader: Any, *, is_asked: bool = False) -> None:
    """Note for the next sync of this rank that it reads a loader, or says that it did."""
    reading.last = None
    try:
        known = check(loader)
    except Exception:  # noqa: BLE001  (samplers of the user's may raise anything)
        return
    if not known.repeated or loader in _told or (known.is_drawn and not is_asked):
        return
    parts = (loader, loader.sampler, loader.batch_sampler, loader.dataset)
    packages = [type(part).__module__.partition(".")[0] for part in parts]
    own = next((_INSTEAD[each] for each in packages if each in _INSTEAD), "data.exact(loader)")
    what = f"{known.repeated} of {known.dealt} samples that a loader of a "
    what += f"{type(loader.dataset).__name__} dealt out are repeats"
    do = f"evaluate with distmetrics.{own}."
    batches = None if is_asked else known.batches
    reading.last = Pass(weakref.ref(loader), known.world_size, batches, what, do)


_iter = DataLoader.__iter__


@functools.wraps(_iter)
def _iter_and_note(self: DataLoader[Any]) -> Iterator[Any]:
    active = active_loader()
    note(self if inner_loader(active) is not self else active)
    return _iter(self)


if os.environ.get(MODE) != "off":
    DataLoader.__iter__ = _iter_and_note  # type: ignore[method-assign,assignment]
