"""Loaders of a rank's part that are no ``DataLoader``: they move, count out or fill up batches."""

from collections.abc import Iterator
from typing import Any

import torch

from distmetrics.data.fresh import being_read
from distmetrics.data.sampling import EvaluationSampler, set_epoch
from distmetrics.tree import move

Batches = Iterator[tuple[Any, int | None]]  # a batch, and how many rows count: None for all


class RankLoader:
    """Batches of this rank's part; other attributes are the loader's that it reads.

    Attributes:
        whole_loader: the loader of the whole data.
        filler: the number of the batch that only fills up, once it was read; else None.
    """

    def __init__(self, loader: Any, whole_loader: Any, device: torch.device | None) -> None:
        self.loader = loader
        self.whole_loader = whole_loader
        self.filler: int | None = None
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        self.filler = None
        for index, (batch, rows) in enumerate(self._batches()):
            if rows == 0:
                self.filler = index
            with being_read(rows):
                yield batch if self._device is None else move(batch, self._device)

    def _batches(self) -> Batches:
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
        whole_loader: of the whole data.
        device: where batches go, or None.
        sampler: what deals the batches out.
        equal_batches: fill up to as many batches as the rank with most of them has.
    """

    def __init__(
        self,
        loader: Any,
        whole_loader: Any,
        device: torch.device | None,
        sampler: EvaluationSampler,
        *,
        equal_batches: bool,
    ) -> None:
        super().__init__(loader, whole_loader, device)
        self._sampler = sampler
        self._equal_batches = equal_batches

    def _batches(self) -> Batches:
        batch = None
        for batch in self.loader:
            yield batch, None
        if len(self.loader) < len(self):
            if batch is None:
                batch = next(iter(self.whole_loader))
            yield batch, 0

    def __len__(self) -> int:
        return self._sampler.most_steps() if self._equal_batches else len(self.loader)


class StreamPart(RankLoader):
    """Every ``world_size``-th batch of a loader that has no order to deal out.

    Args:
        whole_loader: read whole by every rank.
        device: where batches go, or None.
        world_size: number of ranks.
        rank: this rank.
        equal_batches: fill up with another rank's batch where the last round has none for this one.
    """

    def __init__(
        self,
        whole_loader: Any,
        device: torch.device | None,
        world_size: int,
        rank: int,
        *,
        equal_batches: bool,
    ) -> None:
        super().__init__(whole_loader, whole_loader, device)
        self._world_size = world_size
        self._rank = rank
        self._equal_batches = equal_batches

    def _batches(self) -> Batches:
        first, turn = None, 0
        for index, batch in enumerate(self.loader):
            turn = index % self._world_size
            if turn == 0:
                first = batch
            if turn == self._rank:
                yield batch, None
        if first is not None and turn < self._rank and self._equal_batches:
            yield first, 0

    def __len__(self) -> int:
        count = len(self.loader)
        if self._equal_batches:
            count += self._world_size - 1 - self._rank
        return len(range(self._rank, count, self._world_size))
