"""Samplers that give a rank its part of an order.

In evaluation every sample counts exactly once, so ranks may get different numbers of samples, even
none. In training every rank takes the same number of steps, so the order is padded with its own
beginning, or cut with ``drop_last``. Both deal out the order of the loader's own sampler, whatever
that is.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, NamedTuple, cast

from torch.utils.data import DataLoader, IterableDataset, Sampler, SequentialSampler

from distmetrics.data.rng import as_at_first, drawing, random_state, samplers_in, seeded
from distmetrics.data.same_stream import SameOrder
from distmetrics.errors import InputError


def run_of(count: int, world_size: int, rank: int) -> range:
    """Return a rank's contiguous run of ``count`` places; runs differ by one place at most.

    >>> [list(run_of(5, 2, rank)) for rank in range(2)]
    [[0, 1], [2, 3, 4]]
    """
    return range(count * rank // world_size, count * (rank + 1) // world_size)


def every_nth(count: int, world_size: int, rank: int) -> range:
    """Return every ``world_size``-th place from the rank's own on.

    >>> [list(every_nth(5, 2, rank)) for rank in range(2)]
    [[0, 2, 4], [1, 3]]
    """
    return range(rank, count, world_size)


def runs(count: int, batch_size: int, world_size: int, rank: int) -> list[range]:
    """Return the batches of a rank whose share is one contiguous run.

    Args:
        count: number of places.
        batch_size: the most places in a batch.
        world_size: number of ranks.
        rank: the rank.

    >>> [runs(9, 2, 2, rank) for rank in range(2)]
    [[range(0, 2), range(2, 3), range(3, 4)], [range(4, 6), range(6, 8), range(8, 9)]]
    """
    share = run_of(count, world_size, rank)
    largest_share = -(-count // world_size)
    steps = -(-largest_share // batch_size)
    batches = []
    start = share.start
    for later in reversed(range(min(steps, len(share)))):
        end = min(start + batch_size, share.stop - later)  # a place for each later batch
        batches.append(range(start, end))
        start = end
    return batches


def rounds(count: int, batch_size: int, world_size: int, rank: int) -> list[range]:
    """Return the batches of a rank that takes a part of each round; arguments as :func:`runs`.

    >>> [rounds(9, 2, 2, rank) for rank in range(2)]
    [[range(0, 2), range(4, 6), range(7, 8)], [range(2, 4), range(6, 7), range(8, 9)]]
    """
    largest = batch_size * world_size
    batches = []
    start = 0
    for later in reversed(range(-(-count // largest))):
        left = count - start
        wanted = max(left - later * world_size, world_size)  # a place a rank for each later round
        size = min(largest, wanted, left)
        first = -(-size * rank // world_size)
        end = -(-size * (rank + 1) // world_size)
        if first < end:
            batches.append(range(start + first, start + end))
        start += size
    return batches


class Layout(NamedTuple):
    """A way to deal out an order.

    Attributes:
        share: of single places: count, world size and rank to the rank's places.
        batches: count, batch size, world size and rank to the places of the rank's batches.
    """

    share: Callable[[int, int, int], range]
    batches: Callable[[int, int, int, int], list[range]]


RUNS = Layout(run_of, runs)
ROUNDS = Layout(every_nth, rounds)


class Dealt(Sampler[Any]):
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
        if not isinstance(self.source, Sampler) or type(self.source) is SequentialSampler:
            return range(len(self.source))
        with seeded(self.seed + self.epoch, self.source):
            return list(self.source)


class EvaluationSampler(Dealt):
    """One rank's samples in evaluation: every sample is on exactly one rank.

    Each rank gets a contiguous run, so that runs joined in rank order are the data set in its
    order. Runs differ by at most one sample; with fewer samples than ranks some are empty.

    Args:
        source: the data set, or a sampler whose order is dealt out.
        world_size: number of ranks.
        rank: this rank.
        seed: start of the random order of a sampler that shuffles; the same on all ranks.
        layout: another way to deal out, of ``distmetrics.data.sharding``.
        fill: give a rank that has one step fewer than another the first sample once more.
        same: compares the orders that ranks draw; None where nothing is compared.

    >>> [list(EvaluationSampler("abcde", 2, rank)) for rank in range(2)]
    [[0, 1], [2, 3, 4]]
    """

    filler: Any = 0  # the places of the step that fills up

    def __init__(
        self,
        source: Any,
        world_size: int,
        rank: int,
        *,
        seed: int = 0,
        layout: Layout = RUNS,
        fill: bool = False,
        same: SameOrder | None = None,
    ) -> None:
        super().__init__(source, world_size, rank, seed=seed)
        self.layout = layout
        self.fill = fill
        self.same = same
        self._state = random_state(samplers_in(source))

    def _order(self) -> Sequence[Any]:
        """Draw the same order in every pass of an epoch."""
        with drawing, as_at_first(self._state, self.epoch):
            order = super()._order()
        if self.same is not None and not isinstance(order, range):
            self.same.note(order, self.epoch)
        return order

    def share(self, count: int) -> range:
        """Return the rank's places."""
        return self.layout.share(count, self.world_size, self.rank)

    def places(self, count: int, rank: int) -> Sequence[Any]:
        """Return the places of each step of a rank, in an order of ``count`` samples."""
        return self.layout.share(count, self.world_size, rank)

    def steps_of(self, rank: int) -> int:
        """Return the number of steps for which a rank has samples."""
        return len(self.places(len(self.source), rank))

    def least_steps(self) -> int:
        """Return the number of steps for which every rank has samples."""
        return min(self.steps_of(0), self.steps_of(self.world_size - 1))  # the first or the last

    def most_steps(self) -> int:
        """Return the number of steps for which some rank has samples."""
        return max(self.steps_of(0), self.steps_of(self.world_size - 1))

    def is_even(self) -> bool:
        """True if every rank has samples for as many steps."""
        return self.least_steps() == self.most_steps()

    def __iter__(self) -> Iterator[Any]:
        order = self._order()
        if self.fill and len(order) != len(self.source):
            raise InputError(
                f"the {type(self.source).__name__} gives {len(order)} keys, and its length is "
                f"{len(self.source)}: ranks can't be given as many batches",
                do="mend its __len__.",
            )
        for places in self.places(len(order), self.rank):
            yield self._pick(order, places)
        if self.fill and self.steps_of(self.rank) < self.most_steps():
            yield self._pick(order, self.filler)

    def _pick(self, order: Sequence[Any], places: Any) -> Any:
        return order[places]

    def __len__(self) -> int:
        return self.most_steps() if self.fill else self.steps_of(self.rank)


class EvaluationBatches(EvaluationSampler):
    """One rank's batches in evaluation: as many on every rank wherever each has enough samples.

    Args:
        source: a sampler whose order is dealt out.
        world_size: number of ranks.
        rank: this rank.
        batch_size: the most samples in a batch.
        multiple_of: use a multiple of it, and leave out the rest, as ``drop_last`` does: the batch
            size of one process.
        options: as :class:`EvaluationSampler` takes them.

    >>> [list(EvaluationBatches("abcde", 2, rank, batch_size=2)) for rank in range(2)]
    [[[0], [1]], [[2, 3], [4]]]
    """

    filler = range(1)

    def __init__(
        self,
        source: Any,
        world_size: int,
        rank: int,
        *,
        batch_size: int,
        multiple_of: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(source, world_size, rank, **options)
        self.batch_size = batch_size
        self.multiple_of = multiple_of

    def places(self, count: int, rank: int) -> Sequence[range]:
        """Return the places of each batch of a rank, in an order of ``count`` samples."""
        count -= count % self.multiple_of
        return self.layout.batches(count, self.batch_size, self.world_size, rank)

    def _pick(self, order: Sequence[Any], places: Any) -> Any:
        return [order[place] for place in places]


class TrainingSampler(Dealt):
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


class Keys(Sampler[Any]):
    """Any iterable of keys, as a sampler."""

    def __init__(self, keys: Iterable[Any]) -> None:
        self.keys = keys

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(cast(Sized, self.keys))  # a sampler without a length raises TypeError

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on."""
        if hasattr(self.keys, "set_epoch"):
            self.keys.set_epoch(epoch)


def as_sampler(keys: Any) -> Sampler[Any]:
    """Return a loader's sampler, or what stands in for one: any iterable of keys."""
    return keys if isinstance(keys, Sampler) else Keys(keys)


def has_order(loader: Any) -> bool:
    """True if a loader has an order of samples that can be dealt out."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


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
