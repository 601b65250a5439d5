"""Metrics that differ between ranks are never synced into one: refused on every rank, with the words that tell why."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torcheval.metrics as te
import torchmetrics as tm
from torchmetrics import MetricCollection, SumMetric
from torchmetrics.classification import (
    BinaryAccuracy,
    BinaryAUROC,
    BinaryStatScores,
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassPrecision,
    MulticlassRecall,
)
from torchmetrics.retrieval import RetrievalMAP
from torchmetrics.segmentation import MeanIoU

from distmetrics import Communicator, MismatchError, from_function, sync_and_compute
from distmetrics.metrics.adapters.torchmetrics import ADAPTER
from distmetrics.testing import outcomes, run
from tests.backends import same_error
from tests.metrics.samples import updated


class Other(SumMetric):
    pass


def one(kind: Any = SumMetric) -> Any:
    return updated(kind(), 1.0)


def accuracy(odd: bool) -> Any:
    metric = MulticlassAccuracy(3, ignore_index=0 if odd else None)
    return metric if odd else updated(metric, (LABELS, LABELS))


def tracker(steps: int) -> Any:
    made = tm.MetricTracker(SumMetric(), maximize=True)
    for _ in range(steps):
        made.increment()
        made.update(1.0)
    return made


def function(reduce: Any) -> Any:
    return from_function(lambda state: state, reduce=reduce)


def updated_function(x: torch.Tensor) -> Any:
    metric = function({"x": "sum"})
    metric.update(x=x)
    return metric


LABELS = torch.tensor([0, 1])
DIFFER: dict[str, tuple[Callable[[bool], Any], str]] = {
    "class": (lambda odd: one(tm.MeanMetric if odd else SumMetric), "sends MeanMetric("),
    "subclass": (lambda odd: one(Other if odd else SumMetric), "sends Other("),
    "class of equal states": (lambda odd: (MulticlassPrecision if odd else MulticlassRecall)(3), "MulticlassPrecision"),
    "library": (lambda odd: one() if odd else te.Sum(), "SumMetric"),
    "classes": (lambda odd: updated(MulticlassConfusionMatrix(4 + odd), (LABELS, LABELS)), "num_classes=5"),
    "classes without data": (lambda odd: MulticlassConfusionMatrix(4 + odd), "num_classes=5"),
    "thresholds": (lambda odd: BinaryAUROC(thresholds=None if odd else 5), "sends BinaryAUROC(preds cat"),
    "width of rows": (lambda odd: updated(tm.CatMetric(), torch.ones(2, 3 + odd)), "the state value has values"),
    "width of sums": (lambda odd: updated_function(torch.ones(2 + odd)), "the state x has values"),
    "key": (lambda odd: {"loss" if odd else "f1": one()}, "sends loss: "),
    "a key among others": (lambda odd: {str(n): one() for n in range(99)} | ({"code": one()} if odd else {}), "code"),
    "number": (lambda odd: [one() for _ in range(1 + odd)], ""),
    "order": (lambda odd: [one(), one(tm.MeanMetric)][:: -1 if odd else 1], "sends 0: MeanMetric"),
    "collection and dict": (lambda odd: (MetricCollection if odd else dict)({"a": one()}), ""),
    "one object or two": (lambda odd: {"a": one(), "b": one()} if odd else dict.fromkeys("ab", one()), ""),
    "more in a collection": (lambda odd: MetricCollection({name: one() for name in "abc"[: 2 + odd]}), ""),
    "steps of a tracker": (lambda odd: tracker(1 + odd), ""),
    "multidim": (lambda odd: BinaryStatScores(multidim_average="samplewise" if odd else "global"), ""),
    "average": (lambda odd: MulticlassF1Score(3, average="weighted" if odd else "macro"), "average='weighted'"),
    "beta": (lambda odd: tm.FBetaScore("multiclass", beta=1.0 + odd, num_classes=3), "beta=2.0"),
    "an argument or none": (lambda odd: MulticlassAccuracy(3, ignore_index=0 if odd else None), "ignore_index=0"),
    "an argument without data": (accuracy, "ignore_index=0"),
    "an argument in a list": (lambda odd: RetrievalMAP(top_k=2 if odd else None), ", k=2)"),
    "that of a wrapper's child": (lambda odd: tm.MinMaxMetric(tm.MeanSquaredError(squared=not odd)), "squared=False"),
    "that of a collection's": (
        lambda odd: MetricCollection({"f1": MulticlassF1Score(3, average="none" if odd else "macro")}),
        "average='none'",
    ),
    "reduction of a function": (lambda odd: function({"x": "max" if odd else "sum"}), ""),
    "mean of a function": (lambda odd: function({"x": "mean" if odd else "sum"}), ""),
    "names of a function": (lambda odd: function({"x": "sum", "y": "sum"} if odd else {"x": "sum"}), ""),
    "torcheval, class": (lambda odd: te.Min() if odd else te.Max(), "sends Min("),
    "torcheval, classes": (lambda odd: te.MulticlassConfusionMatrix(4 + odd), "num_classes=5"),
    "torcheval, average": (lambda odd: te.MulticlassAccuracy(average="macro" if odd else None, num_classes=4), "macro"),
    "torcheval, thresholds": (lambda odd: te.BinaryBinnedAUPRC(threshold=5 + odd), ""),
    "torcheval, window": (lambda odd: te.WindowedClickThroughRate(max_num_updates=3 + odd), ""),
}


@pytest.mark.parametrize("what", DIFFER)
def test_metrics_that_differ_are_refused_on_every_rank(what: str) -> None:
    """Nothing is paired with what it is not."""
    make, text = DIFFER[what]
    ended = outcomes(3, lambda comm: sync_and_compute(make(comm.rank == 1), comm=comm, name="val"))
    error = same_error(ended, MismatchError)
    assert 1 in error.peers
    assert 'sync of metrics "val"' in str(error)
    assert text in str(error)


def test_the_text() -> None:
    """Pinned, of both libraries."""
    matrix, accuracy = "MulticlassConfusionMatrix(confmat sum", "num_correct float32[], num_total float32[]"
    for make, odd, other in [
        (
            lambda odd: MulticlassConfusionMatrix(4 + odd),
            f"{matrix}[5, 5], num_classes=5)",
            f"{matrix}[4, 4], num_classes=4)",
        ),
        (
            lambda odd: te.BinaryAccuracy(threshold=0.5 + odd / 4),
            f"BinaryAccuracy(threshold=0.75, {accuracy})",
            f"BinaryAccuracy(threshold=0.5, {accuracy})",
        ),
    ]:
        ended = outcomes(2, lambda comm, make=make: sync_and_compute(make(comm.rank), comm=comm))
        text = str(same_error(ended, MismatchError))
        assert text.startswith(f"ranks disagree on sync of metrics: rank 1 sends {odd}, rank 0 sends {other}\n")
        assert "Likely: a key or an element that only some ranks have, or metrics made with different argu" in text


class Theirs(SumMetric):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.seed = rank


def test_what_may_differ_between_ranks_is_let_alone() -> None:
    """What is printed or checked, what updating sets, attributes of others' classes, what the first batch tells."""

    def work(comm: Communicator) -> Any:
        checked = MulticlassAccuracy(3, validate_args=comm.rank == 0, average="micro")
        checked.update(torch.tensor([0, 1]), torch.tensor([0, comm.rank]))
        theirs = updated(Theirs(comm.rank), 1.0)
        binary, counted = BinaryAccuracy(), MeanIoU(input_format="one-hot", per_class=True)
        if comm.rank:
            binary.update(torch.tensor([0.2, 0.7]), torch.tensor([0, 1]))
            counted.update(*torch.ones(2, 1, 3, 4, 4, dtype=torch.int64))  # the number of classes, and shapes of states
        return [float(value.sum()) for value in sync_and_compute([checked, theirs, binary, counted], comm=comm)]

    assert run(2, work) == [[0.75, 2.0, 1.0, 3.0]] * 2


def test_arguments_are_written_as_they_are_before_and_after_updates() -> None:
    """1 and 1.0 are equal, and yet written in two ways, whatever metric was made before."""
    for p in (2, 2.0, 2):
        assert ADAPTER.arguments(tm.MinkowskiDistance(p))["p"] == repr(p)
    metric = updated(tm.MeanSquaredError(num_outputs=2), (torch.ones(3, 2), torch.zeros(3, 2)))
    metric.compute()
    assert ADAPTER.arguments(metric) == {"squared": "True", "num_outputs": "2"}


def plain(comm: Any, shard_of: list[int], kind: str) -> None:
    generator = torch.Generator().manual_seed(shard_of[comm.rank])
    metric, given = {
        "one number": (tm.MeanMetric(), [0.001]),  # a learning rate
        "small counts": (tm.SumMetric(), [float(shard_of[comm.rank] % 2)]),
        "lists": (BinaryAUROC(), [torch.rand(9, generator=generator), torch.arange(9) % 2]),
        "counts": (MulticlassConfusionMatrix(5), torch.randint(5, (2, 5000), generator=generator)),
    }[kind]
    metric.update(*given)
    sync_and_compute(metric, comm=comm)


@pytest.mark.parametrize("kind", ["lists", "counts", "one number", "small counts"])
def test_ranks_that_hold_the_same_are_told_but_not_of_what_may_be_so_by_chance(kind: str) -> None:
    for shard_of in ([0, 0, 1, 1], [0, 1], [0, 0, 1]):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(len(shard_of), plain, shard_of, kind)
        texts = [str(each.message) for each in caught]
        assert len(texts) == (kind in ("lists", "counts") and len(shard_of) == 4)
        for text in texts:
            assert "ranks 0-1 and 2-3 hold the same data: it is counted 2 times" in text
            assert "layout(" in text
