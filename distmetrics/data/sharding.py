"""Samplers that give a rank its part of the order of the loader's own sampler.

In evaluation every sample counts exactly once, so ranks may get different numbers of samples, even
none. In training every rank takes the same number of steps.
"""

import copy
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, SequentialSampler

from distmetrics.data.checksum import checksum
from distmetrics.errors import InputError

# The part that draws, an attribute of it, its value: a generator's bytes, or a number's digits.
State = list[tuple[Any, str, bytes]]
_drawing = threading.RLock()  # ranks of a ThreadWorld share the generators of the process


def held(part: Any, name: str) -> Any:
    """Return what an object itself holds, and not its class; None if it does not."""
    return getattr(part, "__dict__", {}).get(name)


def samplers_in(part: Any) -> Iterator[Any]:
    """Yield a sampler, the one inside it, and so on."""
    while part is not None:
        yield part
        part = getattr(part, "batch_sampler", None) or getattr(part, "sampler", None)


def random_state(parts: Iterable[Any]) -> State:
    """Return what decides the order that samplers, or data sets, draw."""
    state: State = []
    for part in parts:
        # Accelerate's sampler has a seed of its own, by default each rank's.
        for name in ("generator", "initial_seed", "seed", "epoch"):
            value = held(part, name)
            if isinstance(value, torch.Generator):
                state.append((part, name, value.get_state().numpy().tobytes()))
            elif type(value) is int and isinstance(part, Sampler):
                state.append((part, name, str(value).encode()))
    return state


def restore(state: State) -> None:
    """Let samplers and data sets go on from a state."""
    for part, name, value in state:
        if name == "generator":
            part.generator.set_state(torch.frombuffer(bytearray(value), dtype=torch.uint8))
        else:
            setattr(part, name, int(value))


def _drawn(sampler: Any, seed: int) -> list[Any]:
    """Return the order of a sampler; the global generators are seeded meanwhile, and come back.

    Samplers that would draw from PyTorch's get one of their own: other threads draw from that too,
    for each loader that they begin to read.
    """
    numpy: Any = sys.modules.get("numpy")
    without = [part for part in samplers_in(sampler) if getattr(part, "generator", part) is None]
    with _drawing, torch.random.fork_rng(devices=[]):
        states = random.getstate(), numpy and numpy.random.get_state()
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed % 2**32)
        for part in without:
            part.generator = torch.Generator().manual_seed(seed)
        try:
            return list(sampler)
        finally:
            for part in without:
                part.generator = None
            random.setstate(states[0])
            if numpy:
                numpy.random.set_state(states[1])


def run_of(count: int, world_size: int, rank: int) -> range:
    """Return a rank's contiguous run of ``count`` places; runs differ by one place at most.

    >>> [list(run_of(5, 2, rank)) for rank in range(2)]
    [[0, 1], [2, 3, 4]]
    """
    return range(count * rank // world_size, count * (rank + 1) // world_size)


def runs(count: int, batch_size: int, world_size: int, rank: int) -> list[range]:
    """Return the batches, of ``batch_size`` places at most, of a rank that has one run.

    >>> [runs(9, 2, 2, rank) for rank in range(2)]
    [[range(0, 2), range(2, 3), range(3, 4)], [range(4, 6), range(6, 8), range(8, 9)]]
    """
    share = run_of(count, world_size, rank)
    largest_share = -(-count // world_size)
    steps = min(-(-largest_share // batch_size), len(share))
    return [*_cut(share, batch_size, steps, 1)]


def rounds(count: int, batch_size: int, world_size: int, rank: int) -> list[range]:
    """Return the batches of a rank that has a part of each round; arguments as :func:`runs`.

    >>> [rounds(9, 2, 2, rank) for rank in range(2)]
    [[range(0, 2), range(4, 6), range(7, 8)], [range(2, 4), range(6, 7), range(8, 9)]]
    """
    largest = batch_size * world_size
    batches = []
    for step in _cut(range(count), largest, -(-count // largest), world_size):
        # This rank's part of the step; both ends are rounded up.
        first, end = (-(-len(step) * r // world_size) for r in (rank, rank + 1))
        batches.append(step[first:end])
    return [batch for batch in batches if batch]


def _cut(places: range, largest: int, steps: int, least: int) -> Iterator[range]:
    """Yield the places of each step: as many as leave each later one ``least``."""
    for later in reversed(range(steps)):
        size = min(largest, max(len(places) - later * least, least))
        yield places[:size]
        places = places[size:]


@dataclass(eq=False, repr=False)
class RankSampler(Sampler[Any]):
    """The part of an order that belongs to one rank."""

    source: Any
    world_size: int
    rank: int
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise InputError(f"there is no rank {self.rank} in a world of {self.world_size}")
        self.epoch = 0
        self.is_order = isinstance(self.source, Sampler)  # it gives keys, and is no data set

    def steps(self, count: int, rank: int) -> Sequence[Any]:
        """Return the place, or places, of each step of a rank in an order of ``count`` samples."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        order = self._order()
        for step in chain(self.steps(len(order), self.rank), self._fillers()):
            is_batch = isinstance(step, range)
            yield [*order[step.start : step.stop]] if is_batch else order[step % len(order)]

    def __len__(self) -> int:
        return len(self.steps(len(self.source), self.rank))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, in which to shuffle; it is passed on to the source's own."""
        self.epoch = epoch
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)

    def _order(self) -> Sequence[Any]:
        """Draw the whole order, the same on every rank whatever the ranks have drawn before."""
        if not self.is_order or type(self.source) is SequentialSampler:
            return range(len(self.source))
        return _drawn(self.source, self.seed + self.epoch)

    def _fillers(self) -> Sequence[Any]:
        return ()


class Sharding(NamedTuple):
    """How an order is split in evaluation."""

    batch_size: int | None = None  # the most samples in a batch; None gives single samples
    multiple_of: int = 1  # what remains is left out, as ``drop_last`` does
    in_rounds: bool = False  # the ranks' n-th steps are the next places of the order: no runs


@dataclass(eq=False, repr=False, kw_only=True)
class EvaluationSampler(RankSampler):
    """One rank's samples in evaluation: every sample is on exactly one rank.

    Each rank gets a contiguous run, so that runs joined in rank order are the data set in its
    order. Runs differ by at most one sample; with fewer samples than ranks some are empty.

    Args:
        source: the data set, or a sampler whose order is split.
        world_size: number of ranks.
        rank: this rank.
        seed: of the random order of a sampler that shuffles; the same on all ranks.
        layout: how to split the order: a tuple ``(batch_size, multiple_of, in_rounds)``. With a
            batch size it gives batches, as many on every rank wherever each has enough samples; a
            rest that is no multiple is left out; rounds instead of runs.
        fill: give a rank that has one step fewer than another the first sample once more.

    Raises:
        InputError: ``rank`` is not in the world; with ``fill``, ``source`` has another length than
            it says.

    >>> [list(EvaluationSampler("abcde", 2, rank)) for rank in range(2)]
    [[0, 1], [2, 3, 4]]
    >>> pairs = (2, 1, False)
    >>> [list(EvaluationSampler("abcde", 2, rank, layout=pairs)) for rank in range(2)]
    [[[0], [1]], [[2, 3], [4]]]
    """

    layout: Sharding = Sharding()  # noqa: RUF009  (a constant)
    fill: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch_size, self.multiple_of, self.in_rounds = self.layout
        self.note: Callable[[int, int, int], None] | None = None  # compares what ranks draw
        state = random_state(samplers_in(self.source))
        self._generators = [each for each in state if each[1] == "generator"]

    def steps(self, count: int, rank: int) -> Sequence[Any]:
        """Return the place of the sample, or of the batch's samples, in each step of a rank."""
        if self.batch_size is None:
            run = run_of(count, self.world_size, rank)
            return range(rank, count, self.world_size) if self.in_rounds else run
        batches = rounds if self.in_rounds else runs
        return batches(count - count % self.multiple_of, self.batch_size, self.world_size, rank)

    def counts(self) -> tuple[int, int, int]:
        """Return numbers of steps with samples: this rank's, the fewest and the most of a rank."""
        count = len(self.source)
        # The first rank or the last has the fewest, or the most.
        own, *ends = (len(self.steps(count, r)) for r in (self.rank, 0, self.world_size - 1))
        return own, min(ends), max(ends)

    def __len__(self) -> int:
        return self.counts()[2 if self.fill else 0]

    def _order(self) -> Sequence[Any]:
        """Draw the same order in every pass of an epoch."""
        with _drawing:
            before = random_state(samplers_in(self.source))
            try:
                restore(self._generators)
                for part, *_ in self._generators if self.epoch else ():
                    part.generator.manual_seed(part.generator.initial_seed() + self.epoch)
                order = super()._order()
            finally:
                restore(before)
        if self.fill and len(order) != len(self.source):
            raise InputError(
                f"the {type(self.source).__name__} gives {len(order)} keys, and its length is "
                f"{len(self.source)}: ranks can't be given as many batches",
                do="mend its __len__.",
            )
        if self.note is not None and not isinstance(order, range):
            self.note(self.epoch + 1, len(order), checksum(order))
        return order

    def _fillers(self) -> Sequence[Any]:
        filler = 0 if self.batch_size is None else range(1)
        return [filler] * (len(self) - self.counts()[0])


@dataclass(eq=False, repr=False, kw_only=True)
class TrainingSampler(RankSampler):
    """One rank's samples in training: as many on every rank, so that all take the same steps.

    Rank r takes every ``world_size``-th sample from the r-th on: together the ranks' n-th batches
    are the n-th batch of one process with a batch ``world_size`` times as large. Where the samples
    do not divide, the order is continued with its own beginning (up to ``world_size - 1`` samples
    count twice), or its tail is left out with ``drop_last``.

    Args:
        source: the data set, or a sampler whose order is split.
        world_size: number of ranks.
        rank: this rank.
        seed: of the random order, the same on all ranks; epoch e shuffles with ``seed + e``.
        drop_last: leave out the tail instead of repeating the beginning.

    Raises:
        InputError: ``rank`` is not in the world.

    >>> [list(TrainingSampler("abcde", 2, rank)) for rank in range(2)]
    [[0, 2, 4], [1, 3, 0]]
    """

    drop_last: bool = False

    def steps(self, count: int, rank: int) -> range:
        """Return every ``world_size``-th place; the last may be past the end."""
        steps = count // self.world_size if self.drop_last else -(-count // self.world_size)
        return range(rank, rank + steps * self.world_size, self.world_size)


def has_order(loader: Any) -> bool:
    """True if a loader has an order of samples that can be split."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def order_of(loader: DataLoader[Any]) -> Any:
    """Return the batch sampler of a loader, or its sampler where it makes no batches."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def clone(loader: DataLoader[Any], **changed: Any) -> DataLoader[Any]:
    """Return a copy of a loader with other attributes; a subclass may take other arguments."""
    clone = copy.copy(loader)
    for name, value in changed.items():
        object.__setattr__(clone, name, value)  # the loader's own refuses new samplers
    clone._iterator = None
    return clone


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader's samplers which epoch begins."""
    for name in ("sampler", "batch_sampler"):
        sampler: Any = getattr(loader, name, None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
