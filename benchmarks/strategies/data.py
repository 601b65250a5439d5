"""The data of the strategies: the same samples, however many ranks share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from distmetrics.train import DataModule

CLASSES, WIDTH, BATCH, STEPS, SAMPLES = 3, 6, 12, 10, 24
LAYOUTS = ("even", "uneven", "one rank empty")


class Shards(DataModule):
    """Training data dealt out as one process would see it; validation data in shards.

    A strategy with one process cuts each batch for its replicas: there the layout is one of
    batches.

    Args:
        devices: ranks, or replicas in one.
        layouts: of the validation data.
        steps: number of training batches of each rank; of one process each batch holds what all
            ranks' do.
        apart: one process has a batch for each rank's instead.
    """

    def __init__(
        self,
        devices: int,
        layouts: Sequence[str] = (),
        steps: Sequence[int] = (),
        *,
        apart: bool = False,
    ) -> None:
        self.devices, self.layouts, self.apart = devices, layouts, apart
        self.steps = steps or [STEPS] * devices
        generator = torch.Generator().manual_seed(1)
        y = torch.arange(BATCH * STEPS + SAMPLES) % CLASSES
        x = torch.randn(len(y), WIDTH, generator=generator) + nn.functional.one_hot(y, WIDTH)
        self.train_set = TensorDataset(x[: BATCH * STEPS], y[: BATCH * STEPS])
        self.val_set = TensorDataset(x[BATCH * STEPS :], y[BATCH * STEPS :])

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches of every W-th sample: the ranks' n-th together are the n-th of one process."""
        assert self.trainer is not None
        alone = self.trainer.world_size == 1
        mine = range(self.devices) if alone else [self.trainer.global_rank]
        turns = [[rank] for rank in mine] if self.apart else [mine]
        batches = []
        for step in range(STEPS):
            samples = range(BATCH * step, BATCH * (step + 1))
            for ranks in turns:
                active = {rank for rank in ranks if step < self.steps[rank]}
                batch = [sample for sample in samples if sample % self.devices in active]
                if batch:
                    batches.append(batch)
        return DataLoader(self.train_set, batch_sampler=batches)

    def val_dataloader(self) -> list[DataLoader[Any]] | None:
        """Batches of this rank's shards, a loader for each layout."""
        return [self._shard(layout) for layout in self.layouts] or None

    def _shard(self, layout: str) -> DataLoader[Any]:
        assert self.trainer is not None
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        if world_size == 1:
            size = {"even": 2 * self.devices, "uneven": 2 * self.devices + 1}.get(
                layout, self.devices - 1
            )
            return DataLoader(self.val_set, batch_size=max(1, size))
        first, last = bounds(layout, world_size)[rank : rank + 2]
        return DataLoader(Subset(self.val_set, range(first, last)), batch_size=4)


def bounds(layout: str, world_size: int) -> list[int]:
    """Return where each rank's shard begins, and the end.

    >>> bounds("uneven", 3), bounds("one rank empty", 3)
    ([0, 4, 12, 24], [0, 12, 24, 24])
    """
    if layout == "even":
        return [SAMPLES * rank // world_size for rank in range(world_size + 1)]
    if layout == "one rank empty":
        return [*bounds("even", world_size - 1), SAMPLES]
    total = world_size * (world_size + 1) // 2
    return [SAMPLES * (rank * (rank + 1) // 2) // total for rank in range(world_size + 1)]


def counts(devices: int) -> list[int]:
    """Return how many training batches each rank has in uneven training: from all to none.

    >>> counts(3)
    [10, 5, 0]
    """
    return [STEPS * (devices - 1 - rank) // (devices - 1) for rank in range(devices)]
