"""What metrics are made and fed with, told from their names: torchmetrics', torcheval's, and a user's."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torcheval.metrics
import torchmetrics.classification
import torchmetrics.clustering
import torchmetrics.image
import torchmetrics.regression
import torchmetrics.retrieval
import torchmetrics.segmentation
import torchmetrics.text
from torch import Tensor
from torchmetrics import Metric, SumMetric

from distmetrics.cli.guess import Guess, fed_like, guess

FOUR = {"num_classes": 4}


class Mine(Metric):
    def update(self, preds: Tensor, target: Tensor) -> None: ...
    def compute(self) -> Tensor: ...


class MulticlassMine(Mine):
    def __init__(self, num_classes: int, weight: float = 1.0) -> None: ...


class Later(MulticlassMine):
    """Named after nothing, but its parent is."""


class Labels(Mine):
    def __init__(self, num_labels: int) -> None: ...


class Ranked:
    def update(self, preds, target, indexes): ...


class Running:
    def update(self, value, weight=1.0): ...


class Fed:
    def __init__(self, model: Any, num_classes: int) -> None: ...
    def update(self, preds, target): ...


def a_function_that_makes_one() -> Mine:
    return Mine()


@pytest.mark.parametrize(
    ("make", "inputs", "arguments", "options"),
    [
        (torchmetrics.classification.BinaryF1Score, "binary", {}, {}),
        (torchmetrics.classification.MulticlassAUROC, "multiclass", FOUR, FOUR),
        (torchmetrics.classification.MulticlassAccuracy, "multiclass", FOUR, FOUR),
        (torchmetrics.classification.MultilabelF1Score, "multilabel", {"num_labels": 3}, {"num_labels": 3}),
        (torchmetrics.classification.Accuracy, "multiclass", {"task": "multiclass", **FOUR}, FOUR),
        (torchmetrics.regression.MinkowskiDistance, "regression", {"p": 2}, {}),
        (torchmetrics.retrieval.RetrievalMAP, "retrieval", {}, {}),
        (torchmetrics.segmentation.MeanIoU, "segmentation", FOUR, FOUR),
        (torchmetrics.text.BLEUScore, "text", {}, {}),
        (torchmetrics.text.ExtendedEditDistance, "text", {}, {}),
        (torchmetrics.text.WordErrorRate, "text", {}, {"references": None}),
        (torchmetrics.clustering.RandScore, "clustering", {}, {}),
        (torchmetrics.clustering.DunnIndex, "clustering", {}, {"num_features": 2}),
        (torchmetrics.image.StructuralSimilarityIndexMeasure, "image", {}, {"channels": 3}),
        (SumMetric, "aggregation", {}, {}),
        (torcheval.metrics.BinaryAUROC, "binary", {}, {}),
        (torcheval.metrics.MulticlassAUPRC, "multiclass", FOUR, FOUR),
        (torcheval.metrics.MeanSquaredError, "regression", {}, {}),
        (torcheval.metrics.ClickThroughRate, "aggregation", {}, {}),
        (Later, "multiclass", FOUR, FOUR),
        (Labels, "multilabel", {"num_labels": 3}, {"num_labels": 3}),
        (Ranked, "retrieval", {}, {}),
        (Running, "aggregation", {}, {}),
    ],
)
def test_names_tell(make, inputs, arguments, options):
    assert guess(make, {}) == Guess(arguments, inputs, options)


@pytest.mark.parametrize("make", [Mine, a_function_that_makes_one, functools.partial(Mine), object])
def test_silent_where_names_do_not_tell(make):
    assert guess(make, {}).inputs == ""


def test_arguments_that_are_given_stay_and_shape_the_inputs():
    made = guess(torchmetrics.classification.Accuracy, {"task": "multilabel", "num_labels": 7})
    assert (made.arguments, made.inputs) == ({"task": "multilabel", "num_labels": 7}, "multilabel")
    assert made.options == {"num_labels": 7}
    assert guess(torchmetrics.classification.Accuracy, {"task": "binary"}).inputs == "binary"


def test_what_was_made_tells_where_its_maker_does_not():
    made = torchmetrics.classification.Accuracy(task="multilabel", num_labels=7)
    assert fed_like(Guess({"task": "multilabel"}), made) == Guess(
        {"task": "multilabel"}, "multilabel", {"num_labels": 7}
    )
    assert fed_like(Guess(), a_function_that_makes_one()).inputs == ""


def test_what_the_constructor_demands_and_nobody_knows_is_named():
    assert guess(Fed, {}).unknown == ("model",)
    assert guess(Fed, {"model": None}).unknown == ()
