"""What users hand over: the same on every rank, or refused on every rank."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
from torch import nn
from torchmetrics import MetricCollection, SumMetric

from distmetrics import StateError, sync_and_compute
from distmetrics.testing import outcomes, run
from tests.backends import same_error
from tests.metrics.samples import updated

Pair = collections.namedtuple("Pair", "low high")


def summed(value: float) -> Any:
    return updated(SumMetric(), value)


@dataclasses.dataclass
class Held:
    loss: Any


def twice() -> Any:
    metric = summed(1.0)
    return {"a": metric, "b": [metric], "c": metric}


FORMS = {
    "nested": (lambda: {"b": summed(1.0), "a": [summed(2.0), (summed(3.0),)]}, {"b": 2.0, "a": [4.0, [6.0]]}),
    "integer keys": (lambda: {10: summed(1.0), 9: summed(2.0)}, {10: 2.0, 9: 4.0}),
    "tuple keys": (lambda: {("val", 0): summed(1.0), ("val", 1): summed(2.0)}, {("val", 0): 2.0, ("val", 1): 4.0}),
    "named tuple": (lambda: Pair(summed(1.0), summed(2.0)), [2.0, 4.0]),
    "queue": (lambda: collections.deque([summed(1.0)]), [2.0]),
    "one metric, many names": (twice, {"a": 2.0, "b": [2.0], "c": 2.0}),  # is synced, and counted, once
    "nothing beside a metric": (lambda: {"none": [], "empty": {}, "a": summed(1.0)}, {"none": [], "empty": {}, "a": 2}),
    "collection without metrics": (lambda: MetricCollection({}), {}),
    "module": (lambda: nn.Sequential(nn.Linear(1, 1), nn.ModuleDict({"a": summed(1.0)})), {"1.a": 2.0}),
}


def test_forms() -> None:
    """Any container; the ranks' results have the order of each one's own keys."""

    def work(comm: Any) -> Any:
        for form, (make, wanted) in FORMS.items():
            assert sync_and_compute(make(), comm=comm) == wanted, form
        for one, two in (("a.b", "a"), (1, "1")):  # whose paths read alike
            items = [(one, summed(1.0)), (two, {"b": summed(10.0)})][:: -1 if comm.rank else 1]
            found = [*sync_and_compute(dict(items), comm=comm).items()]
            assert found == [(one, 2.0), (two, {"b": 20.0})][:: -1 if comm.rank else 1]

    run(2, work)


NOTHING = {
    "set": lambda: {summed(1.0)},
    "generator": lambda: (summed(1.0) for _ in range(1)),
    "values of a dict": lambda: {"a": summed(1.0)}.values(),
    "dataclass": lambda: Held(summed(1.0)),
    "module": lambda: nn.Linear(1, 1),
}


@pytest.mark.parametrize(("kind", "ranks"), [*((kind, {0}) for kind in NOTHING), ("module", {0, 1, 2})])
def test_what_holds_no_metric_is_refused_on_every_rank(kind: str, ranks: set[int]) -> None:
    """Also where the other ranks have one; a container without an order that all ranks share is none."""

    def work(comm: Any) -> None:
        sync_and_compute(NOTHING[kind]() if comm.rank in ranks else summed(1.0), comm=comm)

    error = same_error(outcomes(3, work), StateError)
    assert error.peers == tuple(sorted(ranks))
    assert f"a {type(NOTHING[kind]()).__name__} holds no metric that distmetrics knows" in str(error)
