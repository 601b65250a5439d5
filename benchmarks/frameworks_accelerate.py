"""Accelerate's part of the table of frameworks: ``prepare`` of distmetrics, and its own alone.

Two programs: one updates metrics with each rank's batches and syncs them, the other updates them
with what ``gather_for_metrics`` returns.
"""

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.frameworks_cases import (
    Case,
    Metrics,
    Outcome,
    Seen,
    Values,
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

PROGRAMS = ("update", "gather_for_metrics")
DATA = ("map", "iterable", "sized")


def all_cases(world_size: int) -> Iterator[Case]:
    """Yield the evaluations of one world."""
    return cases_of("Accelerate", PROGRAMS, DATA, world_size)


def cases(part: list[Case]) -> Iterator[Outcome]:
    """Yield the outcomes of evaluations of one world."""
    return outcomes(evaluations, part, by_hand)


def evaluations(comm: Any, part: list[Case], with_distmetrics: bool) -> list[Seen]:
    """Return what one rank gets in each case."""
    from accelerate import Accelerator

    from tests.integrations.modules import elastic

    if comm.world_size > 1:
        os.environ |= elastic(comm)
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(model_of()).eval()
    return [_evaluate(accelerator, model, case, with_distmetrics) for case in part]


def _evaluate(accelerator: Any, model: Any, case: Case, with_distmetrics: bool) -> Seen:
    from distmetrics.integrations.accelerate import prepare

    plain = loader_of(case)
    with warnings_of_repeats() as warned, torch.no_grad():
        loader = prepare(accelerator, plain) if with_distmetrics else accelerator.prepare(plain)
        if case.program == "update":
            values = _updated(model, loader)
            synced = int(values["count"])
        else:
            values = _gathered(accelerator, model, loader)
            synced = None
    return Seen(values, synced, warned)


def _updated(model: Any, loader: DataLoader[Any]) -> Values:
    metrics = Metrics()
    for x, y in loader:
        scores = model(x).squeeze(1)
        metrics.add(scores, y, losses_of(scores, y))
    return numbers(sync_and_compute(metrics))


def _gathered(accelerator: Any, model: Any, loader: DataLoader[Any]) -> Values:
    metrics = Metrics(sync_on_compute=False)  # every rank has all rows already
    for x, y in loader:
        scores = model(x).squeeze(1)
        metrics.add(*accelerator.gather_for_metrics((scores, y, losses_of(scores, y))))
    return numbers(metrics.compute())
