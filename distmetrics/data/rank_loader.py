"""Loaders of a rank's part that are no ``DataLoader``: they move, count out or fill up batches."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch

from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.communicator import Communicator, current
from distmetrics.data.same_stream import SameStream
from distmetrics.data.sharding import EvaluationSampler, set_epoch
from distmetrics.errors import InputError
from distmetrics.tree import move

T = TypeVar("T")


class Step(NamedTuple):
    """A batch of this rank in a round, for which other ranks have theirs.

    Attributes:
        batch: the batch.
        rows: how many of its rows count; None for all.
        is_full: every rank has a batch in this round.
        is_absent: this rank has none, and others do.
    """

    batch: Any
    rows: int | None = None
    is_full: bool = True
    is_absent: bool = False


_ABSENT = Step(None, is_full=False, is_absent=True)
_AHEAD = 4  # batches that a rank reads before ranks tell each other how many they have


class RankLoader:
    """Batches of this rank's part; other attributes are the loader's that it reads.

    Attributes:
        dealt: what was said of a stream, as :func:`distmetrics.data.exact` takes it.
        filler: the number of the first batch that only fills up, once it was read; else None.
        is_alone: it was made where no other rank was known.
    """

    dealt: bool | None = None

    def __init__(self, loader: Any, device: torch.device | None) -> None:
        self.loader = loader
        self.filler: int | None = None
        self.is_alone = False
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        if self.is_alone and current().world_size > 1:
            raise InputError(
                f"exact was called when there was one rank, and now there are "
                f"{current().world_size}: each would read all of the data",
                do="call exact(loader) after torch.distributed.init_process_group.",
            )
        self.filler = None
        batches = (step for step in self.steps() if not step.is_absent)
        for index, step in enumerate(batches):
            if step.rows == 0 and self.filler is None:
                self.filler = index
            with being_read(step.rows):
                yield self.moved(step.batch)

    def moved(self, batch: Any) -> Any:
        """Return the batch on the device where batches go."""
        return batch if self._device is None else move(batch, self._device)

    def steps(self) -> Iterator[Step]:
        """Yield what this rank does in each round."""
        raise NotImplementedError

    def is_even(self) -> bool | None:
        """True if all ranks have as many batches; None if only reading can tell."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Shuffle differently in each epoch."""
        set_epoch(self.loader, epoch)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being made
            raise AttributeError(name)
        return getattr(self.loader, name)


class LoaderPart(RankLoader):
    """A part that samplers deal out.

    Args:
        loader: of this rank's part.
        device: where batches go, or None.
        dealer: the sampler that deals the batches out, and may fill up with one more.
    """

    def __init__(self, loader: Any, device: torch.device | None, dealer: EvaluationSampler) -> None:
        super().__init__(loader, device)
        self.dealer = dealer

    def steps(self) -> Iterator[Step]:
        """Yield the batches."""
        own = self.dealer.steps_of(self.dealer.rank)
        of_all = self.dealer.least_steps()
        for index, batch in enumerate(self.loader):
            is_filler = self.dealer.fill and index >= own
            is_full = self.dealer.fill or index < of_all
            yield Step(batch, 0 if is_filler else None, is_full)
        if own == of_all and not self.is_even():
            yield _ABSENT

    def is_even(self) -> bool:
        """True if all ranks have as many batches."""
        return self.dealer.fill or self.dealer.is_even()

    def __len__(self) -> int:
        return len(self.dealer)


class StreamPart(RankLoader):
    """Every ``world_size``-th batch of a loader that has no order to deal out.

    A rank keeps its batch until it knows whether the round is full.

    Args:
        whole_loader: read whole by every rank.
        device: where batches go, or None.
        world_size: number of ranks.
        rank: this rank.
        equal_batches: fill up with another rank's batch where the last round has none for this one.
        dealt: False if it was said that the stream is not dealt out.
        same: compares what ranks read; None where nothing is compared.
    """

    def __init__(
        self,
        whole_loader: Any,
        device: torch.device | None,
        world_size: int,
        rank: int,
        *,
        equal_batches: bool,
        dealt: bool | None = None,
        same: SameStream | None = None,
    ) -> None:
        super().__init__(whole_loader, device)
        self.dealt = dealt
        self._world_size = world_size
        self._rank = rank
        self._equal_batches = equal_batches
        self._same = same

    def steps(self) -> Iterator[Step]:
        """Yield the batches."""
        first, own, count = None, None, 0
        for batch in self.loader if self._same is None else self._same.read(self.loader):
            if count == 0:
                first = batch
            if count == self._rank:
                own = batch
            count += 1
            if count == self._world_size:
                yield Step(own)
                first, own, count = None, None, 0
        if count > self._rank:
            yield Step(own, is_full=self._equal_batches)
        elif count and self._equal_batches:
            yield Step(first, 0)
        elif count:
            yield _ABSENT

    def is_even(self) -> bool | None:
        """True if all ranks have as many batches; None if only reading can tell."""
        if self._equal_batches:
            return True
        try:
            return len(self.loader) % self._world_size == 0
        except TypeError:
            return None

    def __len__(self) -> int:
        count = len(self.loader)
        if self._equal_batches:
            return -(-count // self._world_size)
        return len(range(self._rank, count, self._world_size))


class Share(RankLoader):
    """All batches of a stream that is this rank's share already.

    Args:
        loader: of the share.
        device: where batches go, or None.
        comm: of the ranks that have shares.
        equal_batches: fill up to as many batches as any rank has.
    """

    dealt = True

    def __init__(
        self, loader: Any, device: torch.device | None, comm: Communicator, *, equal_batches: bool
    ) -> None:
        super().__init__(loader, device)
        self._comm = comm.whole
        self._equal_batches = equal_batches

    def steps(self) -> Iterator[Step]:
        """Yield the batches."""
        if self._equal_batches:
            yield from self._levelled()
            return
        for batch in self.loader:
            yield Step(batch, is_full=False)
        yield _ABSENT

    def _levelled(self) -> Iterator[Step]:
        """Yield the batches; once there are no more, the first one for as long as others go on."""
        batches = iter(self.loader)
        ahead = list(islice(batches, _AHEAD))
        counts = self._gathered(len(ahead), int)
        filler, most = ahead[:1], max(counts)
        if most and not min(counts):
            source = counts.index(most)
            sent = self._gathered(filler if self._comm.rank == source else [], list)[source]
            filler = filler or sent
        while most:
            for batch in ahead:
                yield Step(batch)
            for _ in range(most - len(ahead)):
                yield Step(filler[0], 0)
            ahead = list(islice(batches, _AHEAD))
            most = max(self._gathered(len(ahead), int))

    def _gathered(self, mine: Any, read: Callable[[Any], T]) -> list[T]:
        return gather_objects(mine, read, "exact", comm=self._comm)

    def is_even(self) -> bool | None:
        """True if all ranks have as many batches; None if only reading can tell."""
        return self._equal_batches or None

    def __len__(self) -> int:
        if self._equal_batches:
            raise TypeError("how many batches the ranks get is only known once they are read")
        return len(self.loader)


_reading = threading.local()  # a rank of a ThreadWorld is a thread


class Rows:
    """How many rows of a batch count, None for all; compared by identity."""

    def __init__(self, count: int | None) -> None:
        self.count = count


@contextmanager
def being_read(count: int | None) -> Iterator[None]:
    """Let ``fresh`` keep ``count`` rows of the batch inside the block; None keeps all."""
    stack: list[Rows] = _reading.__dict__.setdefault("stack", [])
    mine = Rows(count)
    stack.append(mine)
    try:
        yield
    finally:
        stack.remove(mine)  # not always the last: loaders that are zipped take turns


def rows_being_read() -> Rows | None:
    """Return the rows of the innermost batch that is being read, if there is one."""
    stack: list[Rows] = _reading.__dict__.get("stack", [])
    return stack[-1] if stack else None
