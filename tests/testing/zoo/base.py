"""What the zoo's metrics are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from distmetrics import register_adapter
from distmetrics.metrics.adapters import MergingAdapter
from distmetrics.testing import laws
from distmetrics.testing.inputs import aggregation
from distmetrics.testing.laws import Law, Laws


@dataclass(frozen=True)
class Specimen:
    """A metric, what it is tried on, and the law that it breaks, if it breaks one.

    Attributes:
        name: for the test's id.
        make: makes it.
        batches: a strategy.
        breaks: the law.
        judged: by which it is judged.
        worlds: numbers of ranks.
        sync: whose sync is judged.
    """

    name: str
    make: Callable[..., Any]
    batches: Any = field(default_factory=lambda: aggregation(min_batches=2))
    breaks: Law | None = None
    judged: Laws = laws.DEFAULT
    worlds: Sequence[int] = (2, 3)
    sync: str = "distmetrics"

    def __str__(self) -> str:
        return self.name


class Total(Metric):
    """The sum of all numbers; right, and what most mutants are made from."""

    full_state_update = False
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, x: Tensor) -> None:
        self.total += x.double().sum()

    def compute(self) -> Any:
        return self.total


class Mergeable:
    """A metric without torchmetrics: it merges itself, and what it holds always counts, also if it saw no data."""

    def merge_state(self, others: Sequence[Any]) -> None:
        raise NotImplementedError

    def compute(self) -> Any:
        raise NotImplementedError


class MergeableAdapter(MergingAdapter):
    def knows(self, value: Any) -> bool:
        return isinstance(value, Mergeable)

    def state(self, metric: Mergeable) -> dict[str, Any]:
        return dict(vars(metric))


register_adapter(MergeableAdapter())
