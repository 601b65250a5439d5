"""Metrics of the same states that were made with other arguments: never synced into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchmetrics as tm
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy, MulticlassF1Score
from torchmetrics.retrieval import RetrievalMAP
from torchmetrics.segmentation import MeanIoU

from distmetrics import Communicator, MismatchError, sync_and_compute
from distmetrics.metrics.adapters.torchmetrics import ADAPTER
from distmetrics.testing import outcomes, run
from tests.backends import same_error

DIFFER: dict[str, tuple[Callable[[bool], tm.Metric], str]] = {
    "average": (lambda odd: MulticlassF1Score(3, average="weighted" if odd else "macro"), "average='weighted'"),
    "beta": (lambda odd: tm.FBetaScore("multiclass", beta=2.0 if odd else 1.0, num_classes=3), "beta=2.0"),
    "squared": (lambda odd: tm.MeanSquaredError(squared=not odd), "squared=False"),
    "threshold": (lambda odd: BinaryAccuracy(threshold=0.9 if odd else 0.5), "threshold=0.9"),
    "absent": (lambda odd: MulticlassAccuracy(3, ignore_index=0 if odd else None), "ignore_index=0"),
    "of a list": (lambda odd: RetrievalMAP(top_k=2 if odd else None), ", k=2)"),
    "of a wrapper's child": (lambda odd: tm.MinMaxMetric(tm.MeanSquaredError(squared=not odd)), "squared=False"),
}


@pytest.mark.parametrize(("what", "backend"), [*((what, "threads") for what in DIFFER), ("average", "gloo")])
def test_other_arguments_are_refused_on_every_rank(what: str, backend: Any) -> None:
    """The states alone would go together."""
    error = same_error(outcomes(3, _sync_with_other_arguments, what, backend=backend), MismatchError)
    assert DIFFER[what][1] in str(error)
    assert "made with different arguments" in str(error)


def _sync_with_other_arguments(comm: Communicator, what: str) -> Any:
    return sync_and_compute(DIFFER[what][0](comm.rank == 1), comm=comm)


def test_in_a_collection_that_was_synced_before() -> None:
    def work(comm: Communicator) -> Any:
        metrics = tm.MetricCollection({"f1": MulticlassF1Score(3, average="none" if comm.rank else "macro")})
        return sync_and_compute(metrics, comm=comm)

    with pytest.raises(MismatchError, match="average='none'"):
        run(2, work)


def test_what_may_differ_between_ranks_is_let_alone() -> None:
    """What is printed or checked, and what updating sets; attributes of classes that are not torchmetrics' own."""

    class Theirs(tm.SumMetric):
        def __init__(self, rank: int) -> None:
            super().__init__()
            self.seed = rank

    def work(comm: Communicator) -> Any:
        checked = MulticlassAccuracy(3, validate_args=comm.rank == 0, average="micro")
        checked.update(torch.tensor([0, 1]), torch.tensor([0, comm.rank]))
        theirs = Theirs(comm.rank)
        theirs.update(1.0)
        binary = BinaryAccuracy()
        if comm.rank:
            binary.update(torch.tensor([0.2, 0.7]), torch.tensor([0, 1]))
        return [float(value) for value in sync_and_compute([checked, theirs, binary], comm=comm)]

    assert run(2, work) == [[0.75, 2.0, 1.0]] * 2


def test_what_the_first_batch_tells_is_no_other_argument() -> None:
    """The number of classes, which the rank without data does not know; shapes of states follow from it."""

    def work(comm: Communicator) -> float:
        metric = MeanIoU(input_format="one-hot", per_class=True)
        if comm.rank:
            metric.update(*torch.ones(2, 1, 3, 4, 4, dtype=torch.int64))
        return float(sync_and_compute(metric, comm=comm).sum())

    assert run(2, work) == [3.0, 3.0]


def test_numbers_are_written_as_they_are() -> None:
    """1 and 1.0 are equal, and yet written in two ways, whatever metric was made before."""
    for p in (2, 2.0, 2):
        assert ADAPTER.arguments(tm.MinkowskiDistance(p))["p"] == repr(p)


def test_arguments_are_the_same_after_updates() -> None:
    metric = tm.MeanSquaredError(num_outputs=2)
    before = ADAPTER.arguments(metric)
    metric.update(torch.ones(3, 2), torch.zeros(3, 2))
    metric.compute()
    assert ADAPTER.arguments(metric) == before == {"squared": "True", "num_outputs": "2"}
