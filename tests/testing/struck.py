"""What ranks do in the tests of faults; light to import, since every process imports it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import distmetrics as dm
from distmetrics.comm.communicator import Communicator


def sums(comm: Communicator) -> list[float]:
    """Three collectives of distmetrics, all alike."""
    return [float(dm.all_reduce(torch.tensor(10.0**place))) for place in range(3)]


def mixed(comm: Communicator) -> Any:
    """Collectives of the transport, each of another kind."""
    total = comm.all_reduce(torch.tensor([1.0, 2.0]), "sum")
    rows = comm.all_gather(torch.tensor([comm.rank]))
    comm.barrier()
    first = comm.broadcast(torch.tensor(comm.rank), 0)
    parts = comm.all_to_all([torch.tensor(comm.rank)] * comm.world_size)
    return [*total.tolist(), [int(row) for row in rows], int(first), [int(part) for part in parts]]


class Spread:
    """A metric without a library, so that processes start at once: the range of what it was given."""

    def __init__(self) -> None:
        self.values = torch.empty(0)

    def update(self, values: Tensor) -> None:
        self.values = torch.cat([self.values, values])

    def compute(self) -> float:
        return float(self.values.max() - self.values.min())


def score(comm: Communicator) -> float:
    """A metric whose data is too much to ride along with its manifest, and needs a round of its own."""
    metric = Spread()
    metric.update(torch.linspace(0, 1 + comm.rank, 20_000))
    metric.values = dm.all_gather_cat(metric.values)
    return metric.compute()


def twice(comm: Communicator) -> Any:
    """A small call, and one whose data needs a round of its own."""
    mean = dm.mean(float(comm.rank), weight=1)
    rows = dm.all_gather(torch.full((20_000,), comm.rank))
    return float(mean), rows[:, 0].tolist()
