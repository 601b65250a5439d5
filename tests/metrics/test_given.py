"""What users hand over: the same on every rank, or refused on every rank."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection, aggregation, classification

from distmetrics import MismatchError, StateError, sync_and_compute
from distmetrics.testing import outcomes, run
from tests.backends import same_error

Pair = collections.namedtuple("Pair", "low high")


def summed(value: float, kind: Any = aggregation.SumMetric) -> Any:
    metric = kind()
    metric.update(value)
    return metric


@dataclasses.dataclass
class Held:
    loss: Any


def twice() -> Any:
    metric = summed(1.0)
    return {"a": metric, "b": [metric], "c": metric}


FORMS = {
    "integer keys": (lambda: {10: summed(1.0), 9: summed(2.0)}, {10: 2.0, 9: 4.0}),
    "tuple keys": (lambda: {("val", 0): summed(1.0), ("val", 1): summed(2.0)}, {("val", 0): 2.0, ("val", 1): 4.0}),
    "named tuple": (lambda: Pair(summed(1.0), summed(2.0)), [2.0, 4.0]),
    "queue": (lambda: collections.deque([summed(1.0)]), [2.0]),
    "ordered": (lambda: collections.OrderedDict(b=summed(1.0), a=summed(2.0)), {"b": 2.0, "a": 4.0}),
    "one metric, many names": (twice, {"a": 2.0, "b": [2.0], "c": 2.0}),
    "nothing beside a metric": (lambda: {"none": [], "empty": {}, "a": summed(1.0)}, {"none": [], "empty": {}, "a": 2}),
    "collection without metrics": (lambda: MetricCollection({}), {}),
    "module": (lambda: nn.Sequential(nn.Linear(1, 1), nn.ModuleDict({"a": summed(1.0)})), {"1.a": 2.0}),
    "large": (lambda: [summed(float(index)) for index in range(12)], [2.0 * index for index in range(12)]),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    """Any container; the same object under several names is synced, and counted, once."""
    make, wanted = FORMS[form]
    assert run(2, lambda comm: sync_and_compute(make(), comm=comm)) == [wanted] * 2


NOTHING = {
    "class": lambda: aggregation.SumMetric,
    "function": lambda: lambda: summed(1.0),
    "set": lambda: {summed(1.0)},
    "generator": lambda: (summed(1.0) for _ in range(1)),
    "values of a dict": lambda: {"a": summed(1.0)}.values(),
    "dataclass": lambda: Held(summed(1.0)),
    "tensor": lambda: torch.ones(1),
    "None": lambda: None,
    "numbers": lambda: [1.0, 2.0],
    "module": lambda: nn.Linear(1, 1),
}


@pytest.mark.parametrize("ranks", [{0}, {0, 1, 2}], ids=["one rank", "all ranks"])
@pytest.mark.parametrize("kind", NOTHING)
def test_what_holds_no_metric_is_refused_on_every_rank(kind: str, ranks: set[int]) -> None:
    """Also where the other ranks have one; a container without an order that all ranks share is none."""

    def work(comm: Any) -> None:
        sync_and_compute(NOTHING[kind]() if comm.rank in ranks else summed(1.0), comm=comm)

    error = same_error(outcomes(3, work), StateError)
    assert error.peers == tuple(sorted(ranks))
    assert f"a {type(NOTHING[kind]()).__name__} holds no metric that distmetrics knows" in str(error)


class Other(aggregation.SumMetric):
    pass


DIFFERENT = {
    "order": lambda odd: [summed(1.0), summed(1.0, aggregation.MeanMetric)][:: -1 if odd else 1],
    "subclass": lambda odd: summed(1.0, Other if odd else aggregation.SumMetric),
    "class of equal states": lambda odd: (
        classification.MulticlassPrecision if odd else classification.MulticlassRecall
    )(3),
    "collection and dict": lambda odd: (MetricCollection if odd else dict)({"a": summed(1.0)}),
    "one object or two": lambda odd: {"a": summed(1.0), "b": summed(1.0)} if odd else dict.fromkeys("ab", summed(1.0)),
    "more in a collection": lambda odd: MetricCollection({name: summed(1.0) for name in ("abc" if odd else "ab")}),
    "reduction": lambda odd: classification.BinaryStatScores(multidim_average="samplewise" if odd else "global"),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_metrics_that_differ_are_refused_on_every_rank(kind: str) -> None:
    """Nothing is paired with what it is not."""
    ended = outcomes(3, lambda comm: sync_and_compute(DIFFERENT[kind](comm.rank == 2), comm=comm))
    assert 2 in same_error(ended, MismatchError).peers
