"""A loader that serves a rank its part, for the trainer and the runner."""

import warnings
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from distmetrics.comm.communicator import Communicator
from distmetrics.data.exact import part_of
from distmetrics.data.rank_loader import LoaderPart
from distmetrics.data.sharding import RankSampler, TrainingSampler, clone, has_order, order_of
from distmetrics.data.unwrap import unwrap


def shard(
    loader: Any,
    world_size: int,
    rank: int,
    *,
    train: bool,
    seed: int = 0,
    comm: Communicator | None = None,
) -> Any:
    """Return a loader like ``loader`` that serves rank ``rank``'s part; ``loader`` stays as it is.

    For evaluation it is what :func:`distmetrics.data.exact` returns; ``comm`` compares what ranks
    read of streams. For training only the sampler differs: batch size, ``collate_fn``, workers,
    generator and the rest are the loader's own, also those of a subclass. A custom
    ``batch_sampler`` is dealt out batch by batch. A loader whose order is not ours to choose (an
    ``IterableDataset``, or no ``DataLoader`` at all) comes back as it is, with a warning; one that
    already deals out its samples (a ``DistributedSampler``, say) comes back as it is.
    """
    if not train:
        part = part_of(unwrap(loader), world_size, rank, comm, seed=seed)
        return part.loader if isinstance(part, LoaderPart) else part
    if not has_order(loader):
        if rank == 0:
            kind = "an IterableDataset" if isinstance(loader, DataLoader) else type(loader).__name__
            warnings.warn(
                f"every rank reads the whole training data: {kind} has no sampler that could be "
                f"dealt out to {world_size} ranks. Serve each rank its part and say "
                "use_distributed_sampler=False (Trainer) or replace_sampler=False (Runner).",
                stacklevel=4,
            )
        return loader
    order = order_of(loader)
    if any(isinstance(each, DistributedSampler | RankSampler) for each in (loader.sampler, order)):
        return loader
    is_plain = type(order) is BatchSampler  # then its sampler is the order, not the loader's
    drop_last = is_plain and order.drop_last
    source = order.sampler if is_plain else order
    dealt = TrainingSampler(source, world_size, rank, seed=seed, drop_last=drop_last)
    dealt.is_order = True
    if is_plain:
        batches = BatchSampler(dealt, order.batch_size, drop_last)
        return clone(loader, sampler=dealt, batch_sampler=batches)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    return clone(loader, **{name: dealt})
