"""Fabric's part of the table of frameworks: ``setup_dataloaders``, of distmetrics and its own."""

import os
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.frameworks_cases import (
    Case,
    Metrics,
    Outcome,
    Seen,
    by_hand,
    cases_of,
    loader_of,
    losses_of,
    model_of,
    numbers,
    outcomes,
    warnings_of_repeats,
)
from distmetrics import sync_and_compute

DATA = ("map", "iterable", "sized")


def all_cases(world_size: int) -> Iterator[Case]:
    """Yield the evaluations of one world."""
    return cases_of("Fabric", ("update",), DATA, world_size)


def cases(part: list[Case]) -> Iterator[Outcome]:
    """Yield the outcomes of evaluations of one world."""
    return outcomes(evaluations, part, by_hand)


def evaluations(comm: Any, part: list[Case], with_distmetrics: bool) -> list[Seen]:
    """Return what one rank gets in each case."""
    from lightning.fabric import Fabric

    from tests.integrations.modules import elastic

    if comm.world_size > 1:
        os.environ |= elastic(comm)
    strategy = "ddp" if comm.world_size > 1 else "auto"
    with warnings_of_repeats():
        fabric = Fabric(strategy=strategy, devices=comm.world_size, accelerator="cpu")
        fabric.launch()
        model = fabric.setup(model_of()).eval()
    return [_evaluate(fabric, model, case, with_distmetrics) for case in part]


def _evaluate(fabric: Any, model: Any, case: Case, with_distmetrics: bool) -> Seen:
    from distmetrics.integrations.fabric import setup_dataloaders

    plain = loader_of(case)
    metrics = Metrics()
    with warnings_of_repeats() as warned, torch.no_grad():
        loader: Any
        if with_distmetrics:
            loader = setup_dataloaders(fabric, plain)
        else:
            loader = fabric.setup_dataloaders(plain)
        for x, y in loader:
            scores = model(x).squeeze(1)
            metrics.add(scores, y, losses_of(scores, y))
        values = numbers(sync_and_compute(metrics))
    return Seen(values, int(values["count"]), warned)
