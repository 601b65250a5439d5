"""Where batches come from: the user's data module, the loaders of a call, and the way to the device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from distmetrics.collectives.ops import all_gather_object, all_reduce
from distmetrics.comm.base import Communicator
from distmetrics.errors import ConfigurationError
from distmetrics.strategies.sampling import EvaluationSampler, TrainingSampler
from distmetrics.tree import map_leaves

if TYPE_CHECKING:
    from distmetrics.train.trainer import Trainer

__all__ = [
    "DataModule",
    "EvaluationSampler",
    "TrainingSampler",
    "agreed_batches",
    "limited",
    "move",
]

T = TypeVar("T")
Limit = int | float | None


class DataModule:
    """The data of a task, apart from the model: override what the task has.

    Attributes:
        trainer: the trainer that uses it, while it does: for shards of one's own, ``self.trainer.global_rank``.
    """

    trainer: Trainer | None = None

    def prepare_data(self) -> None:
        """Called once a machine, before ``setup``: download and unpack here, and set nothing on ``self``."""

    def setup(self, stage: str) -> None:
        """Called on every rank: make data sets here.

        Args:
            stage: "fit", "validate" or "test".
        """

    def train_dataloader(self) -> Any:
        """Return the loader to train on."""
        return None

    def val_dataloader(self) -> Any:
        """Return the loader to validate on, or a list of several."""
        return None

    def test_dataloader(self) -> Any:
        """Return the loader to test on, or a list of several."""
        return None


def move(batch: T, device: torch.device) -> T:
    """Return the batch with every tensor on ``device``, and whatever else has a method ``to`` moved by it.

    >>> move({"x": torch.zeros(2), "name": "a"}, torch.device("cpu"))
    {'x': tensor([0., 0.]), 'name': 'a'}
    """

    def to_device(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(device, non_blocking=True)
        return leaf.to(device) if callable(getattr(leaf, "to", None)) else leaf

    return map_leaves(to_device, batch)


def limited(loader: Any, limit: Limit, flag: str) -> int | None:
    """Return how many batches of the loader to use, or None for all there are.

    Args:
        loader: this rank's loader.
        limit: a number of batches, a fraction of them, or None.
        flag: the trainer's flag, for messages.

    Raises:
        ConfigurationError: a negative limit, a fraction above 1, or a fraction of a loader without a length.
    """
    if limit is None:
        return None
    if isinstance(limit, bool) or limit < 0 or (isinstance(limit, float) and limit > 1):
        raise ConfigurationError(
            f"{flag} must be a number of batches, or a fraction between 0.0 and 1.0, got {limit!r}"
        )
    if isinstance(limit, int):
        return limit
    try:
        return int(limit * len(loader))
    except TypeError as error:
        raise ConfigurationError(
            f"{flag}={limit}: a {type(loader).__name__} has no length to take a part of"
        ) from error


def agreed_batches(loader: Any, limit: int | None, comm: Communicator) -> Iterator[tuple[Any, int]]:
    """Yield ``(batch, ranks)`` until no rank has a batch: this rank's or None, and how many ranks have one.

    Every rank gets the same number of pairs, however many batches it has, so that all take the same steps.
    Where every rank knows its number beforehand, one exchange an epoch tells all; elsewhere each step asks.
    """
    batches = iter(itertools.islice(loader, limit))
    if comm.world_size == 1:
        yield from ((batch, 1) for batch in batches)
        return
    counts = all_gather_object(_known_length(loader, limit), comm=comm, name="training batches")
    if all(count is not None for count in counts):
        yield from _by_count(batches, counts, comm.rank)
        return
    nothing = object()
    while True:
        batch = next(batches, nothing)
        ranks = all_reduce(torch.tensor(int(batch is not nothing)), comm=comm, name="ranks with a batch")
        if not ranks:
            return
        yield (None if batch is nothing else batch), int(ranks)


def _by_count(batches: Iterator[Any], counts: Sequence[int], rank: int) -> Iterator[tuple[Any, int]]:
    for step in range(max(counts)):
        batch = None
        if step < counts[rank]:
            try:
                batch = next(batches)
            except StopIteration:
                raise ConfigurationError(
                    f"the training loader of rank {rank} has {step} batches, and its length says {counts[rank]}"
                ) from None
        yield batch, sum(count > step for count in counts)


def _known_length(loader: Any, limit: int | None) -> int | None:
    """Return the number of batches, if the loader can be relied on to know it."""
    known = isinstance(loader, Sequence) or (
        isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    )
    if not known:
        return None
    try:
        length = len(loader)
    except TypeError:  # a sampler without a length
        return None
    return length if limit is None else min(length, limit)
