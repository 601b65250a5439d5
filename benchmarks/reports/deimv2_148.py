"""Results in the order of ranks, read in the order of image ids."""

from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from distmetrics import gather_samples

THREAD, DATE = "Intellindust-AI-Lab/DEIMv2#148", "2026-04-15"
SYMPTOM = (
    "Results that are gathered in the order of ranks are read in the order of image ids: average "
    "precision differs from one GPU's."
)
RANKS, BACKEND = 2, "threads"
IMAGES = torch.tensor([139, 285, 632, 724, 776, 785, 802])
HITS = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0])
OBJECTS = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])  # of each image, by its place


def _share(comm: Any) -> tuple[torch.Tensor, torch.Tensor]:
    data = TensorDataset(IMAGES, HITS)
    sampler: Any = DistributedSampler(data, comm.world_size, comm.rank, shuffle=False)
    batches = list(DataLoader(data, batch_size=2, sampler=sampler))
    return torch.cat([ids for ids, _ in batches]), torch.cat([hits for _, hits in batches])


def naive(comm: Any) -> float:
    """Gather, keep each id once, and forget to reorder what belongs to it."""
    ids, hits = _share(comm)
    parts = [(torch.zeros_like(ids), torch.zeros_like(hits)) for _ in range(comm.world_size)]
    dist.all_gather([part[0] for part in parts], ids)
    dist.all_gather([part[1] for part in parts], hits)
    merged = set(torch.cat([part[0] for part in parts]).tolist())
    found = torch.cat([part[1] for part in parts])[: len(merged)]
    return float((found * OBJECTS).sum() / OBJECTS.sum())


def ours(comm: Any) -> float:
    """Gather by ids."""
    ids, hits = _share(comm)
    gathered: Any = gather_samples(ids, hits)
    _, hits, _ = gathered
    return float((hits * OBJECTS).sum() / OBJECTS.sum())


def right() -> float:
    """Weigh the hits of all images."""
    return float((HITS * OBJECTS).sum() / OBJECTS.sum())
