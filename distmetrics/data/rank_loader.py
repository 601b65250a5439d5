"""Loaders of a rank's part that are not a ``DataLoader``: they move, pick or fill up batches."""

import itertools
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from distmetrics.collectives.exchange import note_read
from distmetrics.collectives.ops import all_gather_object, meet
from distmetrics.comm.communicator import Communicator, current
from distmetrics.data.checksum import checksum
from distmetrics.data.sharding import EvaluationSampler, set_epoch
from distmetrics.errors import InputError
from distmetrics.tree import move


class Step(NamedTuple):
    """A batch of this rank in a round, for which other ranks have theirs."""

    batch: Any
    rows: int | None = None  # how many are valid; None for all
    is_full: bool = True  # every rank has a batch in this round
    is_absent: bool = False  # this rank has none, and others do


_ABSENT = Step(None, is_full=False, is_absent=True)
_AHEAD = 4  # batches that a rank reads before ranks tell each other how many they have


@dataclass(eq=False)
class RankLoader:
    """Batches of this rank's part; other attributes are the loader's that it reads."""

    loader: Any
    device: torch.device | None = None  # where batches go
    equal_batches: bool = False
    dealt: bool | None = None  # what was said of a stream
    filler: int | None = None  # number of the first batch that only fills up, once it was read
    is_alone: bool = False  # made where no other rank was known

    def __iter__(self) -> Iterator[Any]:
        if self.is_alone and current().world_size > 1:
            raise InputError(
                f"exact was called when there was one rank, and now there are "
                f"{current().world_size}: each would read all of the data",
                do="call exact(loader) after torch.distributed.init_process_group.",
            )
        return self._batches(len(reading.stack))

    def _batches(self, depth: int) -> Iterator[Any]:
        self.filler = reading.last = None
        steps = (step for step in self.steps() if not step.is_absent)
        for index, step in enumerate(steps):
            if step.rows == 0 and self.filler is None:
                self.filler = index
            with being_read(step.rows, depth):
                yield step.batch if self.device is None else move(step.batch, self.device)

    def steps(self) -> Iterator[Step]:
        """Yield what this rank does in each round."""
        raise NotImplementedError

    def needs_filler(self) -> bool:
        """True unless all ranks are known to have as many batches without one that fills up."""
        return True

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle differently in each epoch."""
        set_epoch(self.loader, epoch)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being made
            raise AttributeError(name)
        return getattr(self.loader, name)


def _once(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of one pass; some iterators begin anew if they are asked once more."""
    yield from batches


@dataclass(eq=False, kw_only=True)
class LoaderPart(RankLoader):
    """A part that a sampler picks."""

    own_sampler: EvaluationSampler

    def steps(self) -> Iterator[Step]:
        """Yield the batches."""
        own, least, most = self.own_sampler.counts()
        for index, batch in enumerate(self.loader):
            yield Step(batch, 0 if index >= own else None, self.equal_batches or index < least)
        if own < most and not self.equal_batches:
            yield _ABSENT

    def needs_filler(self) -> bool:
        """True if only a batch that fills up gives all ranks as many."""
        _, least, most = self.own_sampler.counts()
        return least < most


@dataclass(eq=False, kw_only=True)
class StreamPart(RankLoader):
    """Every ``world_size``-th batch of a loader without an order, which every rank reads whole."""

    world_size: int
    rank: int
    comm: Communicator | None  # of ranks that compare what they read
    number: int = 0  # of the stream, once its first batches were compared
    passes: int = 0

    def steps(self) -> Iterator[Step]:
        """Yield the batches."""
        batches = _once(self.loader if self.comm is None else self._compared(self.comm.whole))
        while True:
            kept = []  # of this round: the first batch, and this rank's
            for place, batch in enumerate(itertools.islice(batches, self.world_size)):
                kept.append(batch if place in (0, self.rank) else None)
            if self.rank < len(kept):
                is_full = self.equal_batches or len(kept) == self.world_size
                yield Step(kept[self.rank], is_full=is_full)
            elif kept:
                yield Step(kept[0], 0) if self.equal_batches else _ABSENT
            else:
                return

    def _compared(self, comm: Communicator) -> Iterator[Any]:
        """Yield the batches; all of a pass are compared at the next call, if all ranks end it."""
        self.passes += 1
        count = crc = 0
        for count, batch in enumerate(self.loader, 1):
            # Those on an accelerator would let each batch wait for it.
            known = checksum(batch, waits=count <= self.world_size)
            crc = zlib.crc32(known.to_bytes(4, "little"), crc)
            if count == self.world_size:
                self._compare_first(comm, count, crc)
            yield batch
        if count < self.world_size:
            self._compare_first(comm, count, crc)
        note_read(comm, self.number, self.passes, count, crc)

    def _compare_first(self, comm: Communicator, count: int, crc: int) -> None:
        """Compare the first batches before one is handed out."""
        if self.number:  # done in an earlier pass
            return
        number = comm.state.count + 1
        note_read(comm, number, 0, count, crc)
        meet("exact's first batches", comm=comm)
        self.number = number

    def __len__(self) -> int:
        first = 0 if self.equal_batches else self.rank
        return len(range(first, len(self.loader), self.world_size))


@dataclass(eq=False, kw_only=True)
class Share(RankLoader):
    """All batches of a stream that is this rank's share already, and what fills up."""

    comm: Communicator

    def steps(self) -> Iterator[Step]:
        """Yield the batches."""
        if self.equal_batches:
            yield from self._levelled()
            return
        for batch in self.loader:
            yield Step(batch, is_full=False)
        yield _ABSENT

    def _levelled(self) -> Iterator[Step]:
        """Yield the batches; once there are no more, the first one for as long as others go on."""
        batches, filler = _once(self.loader), None
        while True:
            ahead = [*itertools.islice(batches, _AHEAD)]
            counts = all_gather_object(len(ahead), comm=self.comm, name="exact")
            if not any(counts):
                return
            if filler is None:
                filler = ahead[:1]
                if not all(counts):
                    ranks = all_gather_object(filler, comm=self.comm, name="exact")
                    filler = next(first for first in (filler, *ranks) if first)
            for batch in ahead:
                yield Step(batch)
            for _ in range(max(counts) - len(ahead)):
                yield Step(filler[0], 0)

    def __len__(self) -> int:
        if self.equal_batches:
            raise TypeError("how many batches the ranks get is only known once they are read")
        return super().__len__()


@dataclass(eq=False)
class ValidRows:
    """How many rows of the batch that a loader has given last are valid; None for all."""

    number: int | None
    depth: int  # how many batches were being read when the pass over the loader began


class _ReadByThread(threading.local):  # a rank of a ThreadWorld is a thread
    last: Any = None  # the pass that it has begun last, if that is over a loader that repeats

    def __init__(self) -> None:
        self.stack: list[ValidRows] = []


reading = _ReadByThread()


@contextmanager
def being_read(number: int | None, depth: int | None = None) -> Iterator[None]:
    """Let ``fresh`` keep ``number`` rows of the batch inside the block; None keeps all."""
    stack = reading.stack
    mine = ValidRows(number, len(stack) if depth is None else depth)
    stack.append(mine)
    try:
        yield
    finally:
        stack.remove(mine)  # not always the last: loaders that are zipped take turns
