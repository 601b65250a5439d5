"""How many samples a loader gives to the ranks twice.

The numbers come from samplers and lengths alone: no data is read, and nothing is imported from the
frameworks. Where their state does not tell, the answer is that nothing is repeated.
"""

from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

from distmetrics.data.sharding import has_order, order_of
from distmetrics.data.unwrap import inner_loader, is_sharded


class RepeatedSamplesWarning(UserWarning):
    """Metrics were synced over a loader that repeats samples, so they count some twice.

    Rank 0 warns once for each loader, at the first sync of metrics that its batches have updated.
    In the guard's mode "strict" it is a :class:`~distmetrics.errors.StateError` on every rank.

    >>> from distmetrics.data import check
    >>> from torch.utils.data import DataLoader, DistributedSampler
    >>> loader = DataLoader(range(3), sampler=DistributedSampler(range(3), num_replicas=2, rank=0))
    >>> check(loader).repeated  # so sync_and_compute(metrics, loader=loader) warns
    1
    """


class Repeats(NamedTuple):
    """What all ranks together get in one pass over a loader."""

    dealt: int = 0  # number of samples, with repeats
    repeated: int = 0  # how many of them some rank has got already
    world_size: int = 0  # how many ranks the loader deals out to
    is_drawn: bool = False  # the samples come in a random order, as they do for training
    batches: int = 0  # of each rank


def check(loader: Any) -> Repeats:
    """Return how many samples a loader deals out to all ranks, and how many of them are repeats.

    Known are torch's ``DistributedSampler`` (also Fabric's, Lightning's and Ray's) and what
    Accelerate and Hugging Face's ``Trainer`` make of data with and without an order.

    Args:
        loader: the loader of one rank.

    Returns:
        a named tuple ``(dealt, repeated, world_size, is_drawn, batches)`` of the number of samples,
        the number of those that are repeats, the number of ranks, whether the order is random, and
        the number of batches of each rank; all 0 or False where it is not known.

    >>> from torch.utils.data import DataLoader, DistributedSampler
    >>> sampler = DistributedSampler(range(597), num_replicas=2, rank=0, shuffle=False)
    >>> check(DataLoader(range(597), batch_size=64, sampler=sampler))[:2]
    (598, 1)
    """
    dealer: Any = None  # what deals out, if it is Accelerate's
    while (inner := inner_loader(loader)) is not None:
        dealer = loader if hasattr(loader, "slice_fn") else None  # rank 0 reads for all ranks
        loader = inner
    if not isinstance(loader, DataLoader):
        return Repeats()
    shard: Any = order_of(loader) if has_order(loader) else loader.dataset
    if hasattr(shard, "process_index"):
        dealer = shard
    return _of_sampler(shard) if dealer is None else _of_accelerate(dealer, loader, shard)


def _of_sampler(batches: Any) -> Repeats:
    """Return the repeats of torch's sampler: they are the last sample of some ranks."""
    sampler: Any = batches.sampler if type(batches) is BatchSampler else batches
    if not isinstance(sampler, DistributedSampler):
        return Repeats()
    dataset = getattr(sampler, "dataset", None)  # one of Hugging Face's has none
    inside = getattr(dataset, "_sampler", None)  # Lightning's, around any sampler
    if inside is None and type(sampler).__iter__ is not DistributedSampler.__iter__:
        return Repeats()  # a sampler of the user's own
    ranks, size = sampler.num_replicas, getattr(batches, "batch_size", 1)
    left_out = len(sampler) % size if batches.drop_last else 0
    repeated = 0 if left_out else max(sampler.total_size - len(sampler.dataset), 0)  # type: ignore[arg-type]
    dealt = sampler.total_size - left_out * ranks
    is_drawn = sampler.shuffle or not (inside is None or isinstance(inside, SequentialSampler))
    return Repeats(dealt, repeated, ranks, is_drawn, -(-dealt // (ranks * size)))


def _of_accelerate(dealer: Any, loader: Any, shard: Any) -> Repeats:
    """Return the repeats where the last round is filled up: all of it, or to as many a rank."""
    if has_order(loader):
        batches: Any = getattr(shard, "batch_sampler", shard)
        source: Any = getattr(batches, "sampler", None)
        is_known = type(batches) is BatchSampler and not is_sharded(source)
        is_drawn = not isinstance(source, SequentialSampler)
    else:
        batches = shard if dealer is shard else loader
        source = batches.dataset
        is_known = hasattr(source, "__len__") and not loader.num_workers and batches.batch_size
        # Frameworks give the epoch, or a generator, to a data set that draws its order.
        is_drawn = hasattr(source, "set_epoch") or hasattr(source, "generator")
    fills = is_known and getattr(dealer, "even_batches", True) and not batches.drop_last
    if not fills or getattr(dealer, "submesh_tp", None):  # whose ranks get the same samples
        return Repeats()
    count, ranks = len(source), getattr(dealer, "state", dealer).num_processes
    size = batches.batch_size * (1 if getattr(dealer, "split_batches", False) else ranks)
    repeated = min(-count % ranks, count) if hasattr(dealer, "slice_fn") else -count % size
    return Repeats(count + repeated, repeated, ranks, is_drawn, -(-count // size))
