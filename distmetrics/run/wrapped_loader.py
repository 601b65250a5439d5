"""The loader that a loop reads in the place of its own: this rank's part, on this rank's device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, SequentialSampler

from distmetrics.data.rank_loader import RankLoader
from distmetrics.data.sharding import EvaluationSampler, has_order, set_epoch
from distmetrics.strategies.base import Strategy
from distmetrics.strategies.sampling import warn_read_whole
from distmetrics.tree import move


class RunnerLoader:
    """A loader as :meth:`Runner.setup_dataloaders` returns it; other attributes are the user's own.

    Every pass begins a new epoch, which shuffles differently; :meth:`set_epoch` says which one is
    next.

    Attributes:
        loader: the loader inside, of this rank's part of the data.
        is_guess: True if nobody has said whether it is for training or for evaluation.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | None,
        open_loaders: list[RunnerLoader],
        *,
        is_guess: bool = False,
    ) -> None:
        self.loader = loader
        self.is_guess = is_guess
        self._device = device
        self._epoch = 0
        self._open_loaders = open_loaders  # the runner's: those that are being read

    def set_epoch(self, epoch: int) -> None:
        """Set which epoch the next pass is, from 0: after a resume, say."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        set_epoch(self.loader, self._epoch)
        self._epoch += 1
        self._open_loaders.append(self)
        try:
            for batch in self.loader:
                yield batch if self._device is None else move(batch, self._device)
        finally:
            self._open_loaders.remove(self)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being made
            raise AttributeError(name)
        return getattr(self.loader, name)

    @property
    def not_for_training(self) -> str:
        """Why steps on this rank's part would not be those of one process; "" where they would.

        An evaluation loader that divides evenly may be read between steps of training, where
        somebody has said that it is one.
        """
        for name in ("sampler", "batch_sampler"):
            sampler = getattr(self.loader, name, None)
            if isinstance(sampler, EvaluationSampler):
                items = f"{len(sampler.source)} items on {sampler.world_size} ranks"
                if len(sampler.source) % sampler.world_size:
                    return f"{items}: ranks would take different numbers of steps"
                if self.is_guess:
                    return f"{items}: their batches would together be none of one process's"
        return ""


def shuffles(loader: Any) -> bool:
    """Return True if a loader's sampler does more than go through the data in order.

    One of ``exact`` is for evaluation, whatever its sampler.

    >>> from torch.utils.data import DataLoader
    >>> shuffles(DataLoader([1, 2])), shuffles(DataLoader([1, 2], shuffle=True))
    (False, True)
    """
    if isinstance(loader, RankLoader):
        return False
    owner, batches = loader, getattr(loader, "batch_sampler", None)
    if batches is not None and type(batches) is not BatchSampler:
        owner = batches
    return not isinstance(getattr(owner, "sampler", None), SequentialSampler)


def rank_loader(loader: Any, strategy: Strategy, *, train: bool, seed: int) -> Any:
    """Return a loader of this rank's part, or the same one with a warning where there is none."""
    comm = strategy.shards()
    if has_order(loader) or not train:
        return strategy.loader(loader, train=train, seed=seed)
    if comm.world_size > 1 and comm.rank == 0:
        warn_read_whole(loader, "data", comm.world_size, "replace_sampler=False")
    return loader
