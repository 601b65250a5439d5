"""The validation loss of a Fabric script."""

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.reports._lightning import joined
from distmetrics import mean
from distmetrics.integrations.fabric import setup_dataloaders

THREAD, DATE = "Lightning-AI/litgpt#2116", "2025-08-30"
SYMPTOM = "The first and the last validation loss of a Fabric script are those of rank 0's share."
RANKS, BACKEND = 2, "gloo"
LOSSES = torch.tensor([1.0, 4.0, 2.0, 3.0, 8.0])


def _fabric(comm: Any) -> Any:
    from lightning.fabric import Fabric

    joined(comm)
    fabric = Fabric(accelerator="cpu", devices=comm.world_size, strategy="ddp")
    fabric.launch()
    return fabric


def naive(comm: Any) -> float:
    """Average what rank 0 has."""
    loader = _fabric(comm).setup_dataloaders(DataLoader(TensorDataset(LOSSES), batch_size=2))
    return float(torch.stack([loss.mean() for (loss,) in loader]).mean())


def ours(comm: Any) -> float:
    """Let ranks' shares weigh what they hold."""
    loader = setup_dataloaders(_fabric(comm), DataLoader(TensorDataset(LOSSES), batch_size=2))
    losses = torch.cat([loss for (loss,) in loader])
    return float(mean(losses.mean(), weight=len(losses)))


def right() -> float:
    """Return the mean over all samples."""
    return float(LOSSES.mean())
