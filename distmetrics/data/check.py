"""How many samples a loader gives to the ranks twice, from samplers and lengths alone.

No data is read, and nothing is imported from the frameworks. Where their state does not tell, the
answer is that nothing is repeated.
"""

from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

from distmetrics.data.rank_loader import RankLoader
from distmetrics.data.sharding import has_order
from distmetrics.data.unwrap import inner_loader, is_sharded


class RepeatedSamplesWarning(UserWarning):
    """Metrics were synced over a loader that repeats samples, so they count some twice."""


class Repeats(NamedTuple):
    """What all ranks together get in one pass over a loader."""

    dealt: int = 0  # number of samples, with repeats
    repeated: int = 0  # how many of them some rank has got already
    world_size: int = 0  # how many ranks the loader deals out to; 0 where that is not known
    is_drawn: bool = False  # the samples come in a random order, as they do for training


_UNKNOWN = Repeats()


def repeats(loader: Any) -> Repeats:
    """Return how many samples a loader deals out to all ranks, and how many of them are repeats.

    Knows torch's ``DistributedSampler`` (Fabric's, Lightning's and Ray's too) and what Accelerate
    and Hugging Face's ``Trainer`` put around data with and without an order.

    >>> from torch.utils.data import DataLoader, DistributedSampler
    >>> sampler = DistributedSampler(range(597), num_replicas=2, rank=0, shuffle=False)
    >>> repeats(DataLoader(range(597), batch_size=64, sampler=sampler))[:2]
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
    return Repeats(dealt, 0 if left_out else repeated, sampler.num_replicas, is_drawn)


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
    repeated = -count % size
    return Repeats(count + repeated, repeated, shard.num_processes, is_drawn)


def _dispatched(loader: Any, base: Any) -> Repeats:
    """Return the repeats of Accelerate's loader that rank 0 reads for all ranks.

    The last round is filled up to a multiple of the number of ranks.
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
    last = count % size or min(count, size)
    repeated = min(-last % ranks, count, size)
    return Repeats(count + repeated, repeated, ranks, is_drawn)


def _is_plain(batches: Any) -> bool:
    """True for a batch sampler of which all that matters is known: torch's own."""
    return type(batches) is BatchSampler


def _draws(dataset: Any) -> bool:
    """True for a data set that draws its order: frameworks give it the epoch, or a generator."""
    return hasattr(dataset, "set_epoch") or hasattr(dataset, "generator")
