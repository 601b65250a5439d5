"""What the zoo's metrics are made of, and how they are judged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from distmetrics import register_adapter
from distmetrics.metrics.adapters import MergingAdapter
from distmetrics.testing import Report, check_metric, laws
from distmetrics.testing.inputs import aggregation
from distmetrics.testing.laws import Law, Laws

WIDE = torch.tensor(0.0, dtype=torch.float64)


@dataclass(frozen=True)
class Specimen:
    """A metric, what it is tried on, and the law that it breaks, if it breaks one.

    Attributes:
        make: makes it.
        batches: a strategy.
        breaks: the law.
        judged: by which it is judged.
        worlds: numbers of ranks.
    """

    name: str
    make: Callable[..., Any]
    batches: Any = field(default_factory=lambda: aggregation(min_batches=2))
    breaks: Law | None = None
    judged: Laws = laws.DEFAULT
    worlds: Sequence[int] = (2, 3)

    def __str__(self) -> str:
        return self.name


def judged(specimen: Specimen, seed: int, examples: int) -> Report:
    """Return what the kit says of it."""
    options: Any = {"laws": specimen.judged, "world_sizes": specimen.worlds, "max_examples": examples}
    return check_metric(specimen.make, specimen.batches, seed=seed, **options)


class Total(Metric):
    """The sum of all numbers; right, and what most mutants are made from. ``more`` are states of a subclass."""

    full_state_update = False
    more: ClassVar[Mapping[str, tuple[Any, Any]]] = {}

    def __init__(self) -> None:
        super().__init__()
        for name, (default, reduce) in {"total": (WIDE, "sum"), **self.more}.items():
            own = copy.deepcopy(default)
            self.add_state(name, own if isinstance(own, list) else torch.as_tensor(own), reduce)

    def update(self, x: Tensor) -> None:
        self.total += x.to(self.total.dtype).sum()

    def compute(self) -> Any:
        return self.total


def changed(more: Mapping[str, tuple[Any, Any]] | None = None, **parts: Any) -> type[Total]:
    """Make a metric that is ``Total`` but for these states and methods."""
    return type("Changed", (Total,), {"more": more or {}, **parts})


class Mergeable:
    """A metric without torchmetrics: it merges itself, and what it holds always counts, also if it saw no data."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        raise NotImplementedError

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
