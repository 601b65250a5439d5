"""Fabric and Accelerate: the process group that they made is used, with nothing to set up."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torchmetrics.classification import BinaryAUROC, BinaryF1Score

from distmetrics import sync_and_compute
from distmetrics.testing import run
from tests.integrations.modules import data, elastic

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(180)]
CUTS = ((0, 14), (14, 40))


def evaluate(device: torch.device, rank: int) -> dict[str, float]:
    """A plain loop, as a user writes it."""
    x, y = data()
    metrics = {"f1": BinaryF1Score().to(device), "auroc": BinaryAUROC().to(device)}
    for rows in range(*CUTS[rank], 7):
        part = slice(rows, min(rows + 7, CUTS[rank][1]))
        for metric in metrics.values():
            metric.update(x[part].sum(1).sigmoid().to(device), y[part].to(device))
    return {name: float(value) for name, value in sync_and_compute(metrics).items()}


def with_fabric(comm: Any) -> dict[str, float]:
    from lightning.fabric import Fabric

    os.environ |= elastic(comm)
    fabric = Fabric(strategy="ddp", devices=comm.world_size, accelerator="cpu")
    fabric.launch()
    assert fabric.world_size == comm.world_size
    return evaluate(fabric.device, fabric.global_rank)


def with_accelerate(comm: Any) -> dict[str, float]:
    from accelerate import Accelerator

    os.environ |= elastic(comm)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == comm.world_size
    return evaluate(accelerator.device, accelerator.process_index)


@pytest.mark.parametrize(("library", "work"), [("lightning.fabric", with_fabric), ("accelerate", with_accelerate)])
def test_the_value_is_that_of_one_process(library: str, work: Any) -> None:
    """In the default group, whoever made it."""
    pytest.importorskip(library)
    x, y = data()
    expected = {}
    for name, metric in {"f1": BinaryF1Score(), "auroc": BinaryAUROC()}.items():
        metric.update(x.sum(1).sigmoid(), y)
        expected[name] = float(metric.compute())
    assert run(2, work, backend="gloo") == [pytest.approx(expected, rel=1e-6)] * 2
