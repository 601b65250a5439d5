"""A file of predictions for a COCO server."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from distmetrics import gather_samples

THREAD, DATE = "ultralytics/ultralytics#22541", "2025-10-30"
SYMPTOM = "The file of predictions has those of rank 0 alone."
RANKS, BACKEND = 2, "gloo"
IMAGES = torch.arange(100, 105)


def _predictions(comm: Any) -> list[dict[str, Any]]:
    data = TensorDataset(IMAGES)
    sampler: Any = DistributedSampler(data, comm.world_size, comm.rank, shuffle=False)
    return [
        {"image_id": int(image), "bbox": [0.0, 0.0, 1.0, float(image)], "score": 0.5}
        for (images,) in DataLoader(data, batch_size=2, sampler=sampler)
        for image in images
    ]


def naive(comm: Any) -> float | None:
    """Write what rank 0 has."""
    found = _predictions(comm)
    return float(len(json.loads(json.dumps(found)))) if comm.rank == 0 else None


def ours(comm: Any) -> float | None:
    """Write the samples of all ranks by their ids."""
    found = _predictions(comm)
    path = Path(tempfile.gettempdir()) / "reports_predictions.jsonl"
    gather_samples([each["image_id"] for each in found], found, dst=path)
    return float(len(path.read_text().splitlines())) if comm.rank == 0 else None


def right() -> float:
    """Return the number of images."""
    return float(len(IMAGES))
