"""The loader that a loop reads in the place of its own: this rank's part, on this rank's device."""

from __future__ import annotations

import copy
import functools
import hashlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from distmetrics.strategies.base import Strategy
from distmetrics.strategies.sampling import EvaluationSampler, set_epoch
from distmetrics.train.data import move
from distmetrics.train.seed import set_all


class RunnerLoader:
    """A loader as :meth:`Runner.setup_dataloaders` returns it; attributes are those of the loader
    inside.

    Every pass begins a new epoch, which shuffles differently; :meth:`set_epoch` says which one is
    next.

    Attributes:
        loader: the loader inside, of this rank's part of the data.
        is_guess: whether nobody has said if it is for training or for evaluation.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | None,
        under_way: list[RunnerLoader],
        *,
        is_guess: bool = False,
    ) -> None:
        self.loader = loader
        self.is_guess = is_guess
        self._device = device
        self._epoch = 0
        self._under_way = under_way  # the runner's: which loaders are being read

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is, from 0: after a resume, say."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        set_epoch(self.loader, self._epoch)
        self._epoch += 1
        self._under_way.append(self)
        try:
            for batch in self.loader:
                yield batch if self._device is None else move(batch, self._device)
        finally:
            self._under_way.remove(self)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # while it is being made
            raise AttributeError(name)
        return getattr(self.loader, name)

    @property
    def not_for_training(self) -> str:
        """Why steps on this rank's part would be other ones than one process's; nothing where they
        wouldn't.

        An evaluation loader that divides evenly may be read between steps of training, where
        somebody has said that it is one.
        """
        for sampler in (getattr(self.loader, name, None) for name in ("sampler", "batch_sampler")):
            if isinstance(sampler, EvaluationSampler):
                items = f"{len(sampler.source)} items on {sampler.world_size} ranks"
                if len(sampler.source) % sampler.world_size:
                    return f"{items}: ranks would take different numbers of steps"
                if self.is_guess:
                    return f"{items}: their batches would together be none of one process's"
        return ""


def shuffles(loader: Any) -> bool:
    """Whether a loader's sampler does more than go through the data in order.

    >>> shuffles(DataLoader([1, 2])), shuffles(DataLoader([1, 2], shuffle=True))
    (False, True)
    """
    batches = getattr(loader, "batch_sampler", None)
    if batches is not None and type(batches) is not BatchSampler:
        return not isinstance(getattr(batches, "sampler", None), SequentialSampler)
    return not isinstance(getattr(loader, "sampler", None), SequentialSampler)


def dealt(loader: Any, strategy: Strategy, *, train: bool, seed: int) -> Any:
    """Return a loader of this rank's part, or the loader itself, with a warning, where that can't
    be made.
    """
    comm = strategy.comm()
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        return strategy.loader(loader, train=train, seed=seed)
    if comm.world_size > 1 and comm.rank == 0:
        what = (
            "an IterableDataset" if isinstance(loader, DataLoader) else f"a {type(loader).__name__}"
        )
        warnings.warn(
            f"every rank reads the whole data: {what} has no sampler that could be dealt out to "
            f"{comm.world_size} ranks. Serve each rank its part and say replace_sampler=False.",
            stacklevel=4,
        )
    return loader


def seeded(loader: Any, rank: int) -> Any:
    """Return a loader whose worker processes draw other random numbers on each rank.

    Torch seeds workers from the loader's process: where all ranks have the same seed, so would
    their workers.
    """
    if (
        not isinstance(loader, DataLoader)
        or not loader.num_workers
        or loader.worker_init_fn is not None
    ):
        return loader
    clone = copy.copy(loader)
    clone._iterator = None
    clone.worker_init_fn = functools.partial(_seed_worker, rank=rank)
    return clone


def _seed_worker(worker: int, rank: int) -> None:
    drawn = f"{torch.initial_seed()} {rank}"  # differs from worker to worker already
    seed = int.from_bytes(hashlib.blake2b(drawn.encode(), digest_size=4).digest(), "big")
    set_all(seed)
