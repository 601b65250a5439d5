"""Which samples a rank works on, and a loader that serves just those.

In evaluation every sample counts exactly once, so ranks may get different numbers of samples, even
none. In training every rank takes the same number of steps, so the order is padded with its own
beginning, or cut with ``drop_last``. Both deal out the order of the loader's own sampler, whatever
that is.
"""

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SequentialSampler,
)

from distmetrics.errors import InputError


class _Dealt(Sampler[Any]):
    """The part of an order that belongs to one rank."""

    def __init__(self, source: Any, world_size: int, rank: int, *, seed: int = 0) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise InputError(f"there is no rank {rank} in a world of {world_size}")
        self.source = source
        self.world_size = world_size
        self.rank = rank
        self.seed = seed
        self.epoch = 0

    def share(self, count: int) -> range:
        """Return the rank's places in an order of ``count`` samples; it may run past its end."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        order = self._order()
        return (order[place % len(order)] for place in self.share(len(order)))

    def __len__(self) -> int:
        return len(self.share(len(self.source)))

    def set_epoch(self, epoch: int) -> None:
        """Shuffle differently in each epoch; passed on to a source that wants to know."""
        self.epoch = epoch
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)

    def _order(self) -> Sequence[Any]:
        """Draw the whole order, the same on every rank whatever the ranks have drawn before."""
        if not isinstance(self.source, Sampler) or isinstance(self.source, SequentialSampler):
            return range(len(self.source))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed + self.epoch)
            return list(self.source)


class EvaluationSampler(_Dealt):
    """One rank's samples in evaluation: every sample is on exactly one rank.

    Each rank gets a contiguous run, so that runs joined in rank order are the data set in its
    order. Runs differ by at most one sample; with fewer samples than ranks some are empty.

    Args:
        source: the data set, or a sampler whose order is dealt out.
        world_size: number of ranks.
        rank: this rank.
        seed: start of the random order of a sampler that shuffles; the same on all ranks.

    >>> [list(EvaluationSampler("abcde", 2, rank)) for rank in range(2)]
    [[0, 1], [2, 3, 4]]
    """

    def share(self, count: int) -> range:
        """Return a contiguous run of places."""
        start = count * self.rank // self.world_size
        end = count * (self.rank + 1) // self.world_size
        return range(start, end)


class TrainingSampler(_Dealt):
    """One rank's samples in training: as many on every rank, so that all take the same steps.

    Rank r takes every ``world_size``-th sample from the r-th on: together the ranks' n-th batches
    are the n-th batch of one process with a batch ``world_size`` times as large. Where the samples
    do not divide, the order is continued with its own beginning (up to ``world_size - 1`` samples
    count twice), or its tail is left out with ``drop_last``.

    Args:
        source: the data set, or a sampler whose order is dealt out.
        world_size: number of ranks.
        rank: this rank.
        seed: start of the random order; the same on all ranks. Epoch e shuffles with ``seed + e``.
        drop_last: leave out the tail instead of repeating the beginning.

    >>> [list(TrainingSampler("abcde", 2, rank)) for rank in range(2)]
    [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(
        self,
        source: Any,
        world_size: int,
        rank: int,
        *,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(source, world_size, rank, seed=seed)
        self.drop_last = drop_last

    def share(self, count: int) -> range:
        """Return every ``world_size``-th place, as many on every rank."""
        steps = count // self.world_size if self.drop_last else -(-count // self.world_size)
        return range(self.rank, self.rank + steps * self.world_size, self.world_size)


class _Keys(Sampler[Any]):
    """Any iterable of keys, as a sampler."""

    def __init__(self, keys: Iterable[Any]) -> None:
        self.keys = keys

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(cast(Sized, self.keys))  # a sampler without a length raises TypeError


def shard(loader: Any, *, world_size: int, rank: int, train: bool, seed: int = 0) -> Any:
    """Return a loader like ``loader`` that serves rank ``rank``'s part; ``loader`` stays as it is.

    Only the sampler differs: batch size, ``collate_fn``, workers, generator and the rest are the
    loader's own, also those of a subclass. A custom ``batch_sampler`` is dealt out batch by batch.
    A loader whose order is not ours to choose (an ``IterableDataset``, or no ``DataLoader`` at all)
    comes back as it is, with a warning; one that already deals out its samples (a
    ``DistributedSampler``, say) comes back as it is.
    """
    if rank == 0:
        _warn(loader, world_size, train)
    if not has_order(loader) or isinstance(loader.sampler, DistributedSampler | _Dealt):
        return loader
    if isinstance(loader.batch_sampler, _Dealt):
        return loader

    def dealt(source: Any) -> _Dealt:
        keys = source if isinstance(source, Sampler) else _Keys(source)
        if train:
            return TrainingSampler(keys, world_size, rank, seed=seed, drop_last=loader.drop_last)
        return EvaluationSampler(keys, world_size, rank, seed=seed)

    if loader.batch_sampler is None:
        return clone(loader, sampler=dealt(loader.sampler))
    if type(loader.batch_sampler) is not BatchSampler:
        return clone(loader, batch_sampler=dealt(loader.batch_sampler))
    sampler = dealt(loader.sampler)
    batches = BatchSampler(sampler, loader.batch_sampler.batch_size, loader.drop_last)
    return clone(loader, sampler=sampler, batch_sampler=batches)


def has_order(loader: Any) -> bool:
    """True if a loader has an order of samples that can be dealt out."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def _warn(loader: Any, world_size: int, train: bool) -> None:
    """Warn of samples that will count several times, or not at all."""
    if not has_order(loader):
        data = f"{'training' if train else 'evaluation'} data"
        warn_read_whole(loader, data, world_size, "use_distributed_sampler=False")
    elif not train and isinstance(loader.sampler, DistributedSampler):
        warnings.warn(
            "a DistributedSampler repeats samples to fill up the ranks: they count twice in the "
            "evaluation. Remove it: the trainer deals out every sample once.",
            stacklevel=3,
        )
    elif not train and loader.drop_last and not isinstance(loader.sampler, _Dealt):
        warnings.warn(
            f"drop_last leaves out up to {world_size} batches of the evaluation data, one on each "
            "rank. Remove it: the last batch may be smaller.",
            stacklevel=3,
        )


def warn_read_whole(loader: Any, data: str, world_size: int, flag: str) -> None:
    """Warn of a loader that every rank reads the whole of; ``flag`` says that this is meant."""
    is_iterable = isinstance(loader, DataLoader)
    what = "an IterableDataset" if is_iterable else f"a {type(loader).__name__}"
    warnings.warn(
        f"every rank reads the whole {data}: {what} has no sampler that could be dealt out to "
        f"{world_size} ranks. Serve each rank its part and say {flag}.",
        stacklevel=4,
    )


def clone(loader: DataLoader[Any], **changed: Any) -> DataLoader[Any]:
    """Return a copy of a loader with other samplers, or what else is given.

    Not built anew from arguments: a subclass may take others, and torch's own grow with its
    versions. A loader refuses new samplers by ``__setattr__`` because its iterators use the old
    ones; the copy has no iterator yet.
    """
    clone = copy.copy(loader)
    for name, value in changed.items():
        object.__setattr__(clone, name, value)
    clone._iterator = None
    return clone


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader's samplers which epoch begins."""
    for name in ("sampler", "batch_sampler"):
        tell = getattr(getattr(loader, name, None), "set_epoch", None)
        if tell is not None:
            tell(epoch)
