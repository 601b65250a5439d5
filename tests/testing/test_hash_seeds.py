"""Ranks whose sets are in different order: names of states, metrics and logs must not be paired by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import distmetrics as dm
from distmetrics.testing import run

NAMES = {f"metric {i}" for i in range(20)}


def order_and_sum(comm: Any) -> tuple[list[str], dict[str, float]]:
    metrics: dict[str, Any] = {}  # not torchmetrics', which would take these interpreters seconds to import
    for name in NAMES:  # in the order that this rank's interpreter gives them
        metrics[name] = dm.from_function(lambda values: values["x"], reduce={"x": "sum"})
        metrics[name].update(x=torch.tensor(float(name.split()[1])))
    values = dm.sync_and_compute(metrics)
    return list(set(NAMES)), {name: float(value) for name, value in values.items()}


@pytest.mark.gloo
def test_metrics_from_a_set_are_paired_by_name() -> None:
    """Ranks that list them in different order get the same sums."""
    (first, values), (second, again) = run(2, order_and_sum, backend="gloo", hash_seeds=[1, 2])
    assert first != second  # else nothing was tested
    assert values == again == {name: 2 * float(name.split()[1]) for name in NAMES}


@pytest.mark.parametrize("options", [{"hash_seeds": [1, 2]}, {"hash_seeds": [1], "backend": "gloo"}])
def test_seeds_need_processes_and_one_each(options: Any) -> None:
    """Threads share an interpreter, and so an order."""
    with pytest.raises(ValueError, match="a seed for each rank"):
        run(2, order_and_sum, **options)
