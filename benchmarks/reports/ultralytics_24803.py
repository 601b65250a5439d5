"""A confusion matrix that is an array of NumPy."""

from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from distmetrics import all_reduce
from distmetrics.data import exact

THREAD, DATE = "ultralytics/ultralytics#24803", "2026-06-11"
SYMPTOM = "The confusion matrix of a validation on several GPUs is that of rank 0."
RANKS, BACKEND = 2, "threads"
FOUND = torch.tensor([0, 1, 1, 2, 0, 2, 2, 1, 0])
WANTED = torch.tensor([0, 1, 2, 2, 1, 2, 0, 1, 0])


def _matrix(loader: Any) -> Any:
    matrix = numpy.zeros((3, 3))
    for found, wanted in loader:
        numpy.add.at(matrix, (found.numpy(), wanted.numpy()), 1)
    return matrix


def _recall(matrix: Any) -> float:
    return float((matrix.diagonal() / matrix.sum(0)).mean())


def naive(comm: Any) -> float:
    """Show the matrix of a rank."""
    data = TensorDataset(FOUND, WANTED)
    sampler: Any = DistributedSampler(data, comm.world_size, comm.rank, shuffle=False)
    return _recall(_matrix(DataLoader(data, batch_size=2, sampler=sampler)))


def ours(comm: Any) -> float:
    """Deal samples out once, and add up the matrices."""
    loader = exact(DataLoader(TensorDataset(FOUND, WANTED), batch_size=2))
    return _recall(all_reduce(torch.from_numpy(_matrix(loader))).numpy())


def right() -> float:
    """Count all samples."""
    return _recall(_matrix([(FOUND, WANTED)]))
