"""Wrappers, collections, and metrics made of metrics by arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Generator
from torchmetrics import MetricCollection, MetricTracker, wrappers
from torchmetrics import classification as c
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.mifid import MemorizationInformedFrechetInceptionDistance
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef, R2Score

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import Source, integers, normal, paired, seeded, uniform
from benchmarks.conformance.catalogue.features import Features

__all__ = ["cases"]

_scalars, _vectors = paired(normal), paired(normal, 3)


def _scores(generator: Generator, n: int) -> Batch:
    return Batch((uniform(generator, n), integers(generator, 2, n)))


def _soft_target(generator: Generator, n: int) -> Batch:
    return Batch((uniform(generator, n), uniform(generator, n)))


def _classes(generator: Generator, n: int) -> Batch:
    return Batch((integers(generator, 4, n), integers(generator, 4, n)))


def _tasks(generator: Generator, n: int) -> Batch:
    scores, labels = _scores(generator, n).args
    return Batch(
        (
            {"label": scores, "size": normal(generator, n)},
            {"label": labels, "size": normal(generator, n)},
        )
    )


def _real_and_fake(generator: Generator, n: int) -> list[Batch]:
    return [
        Batch((uniform(generator, n, 3, 8, 8) ** (2 - real),), {"real": bool(real)})
        for real in (1, 0)
    ]


def _accuracy() -> Any:
    return c.MulticlassAccuracy(num_classes=4, average=None)


def _collection(*, groups: bool) -> MetricCollection:
    members = [c.BinaryPrecision(), c.BinaryRecall(), c.BinaryAUROC(), c.BinaryROC()]
    return MetricCollection(members, prefix="val/", compute_groups=groups)


def _tracker() -> MetricTracker:
    tracker = MetricTracker(MetricCollection([c.BinaryF1Score(), c.BinaryAveragePrecision()]))
    tracker.increment()
    return tracker


def _shared() -> Any:
    network = Features()
    of_features = (FrechetInceptionDistance, MemorizationInformedFrechetInceptionDistance)
    return wrappers.FeatureShare([cls(feature=network) for cls in of_features])


def _multitask() -> Any:
    return wrappers.MultitaskWrapper(
        {"label": _collection(groups=True), "size": MeanSquaredError()}
    )


def _of_predictions(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(wrappers, name)(c.BinaryAUROC(), **options)


_ALL: dict[str, tuple[Callable[[], Any], Source]] = {
    "BootStrapper[seeded]": (
        lambda: seeded(wrappers.BootStrapper, draws_in_compute=False)(
            MeanSquaredError(), num_bootstraps=4, quantile=0.5, raw=True
        ),
        _scalars,
    ),
    "BootStrapper[seeded, lists]": (
        lambda: seeded(wrappers.BootStrapper, draws_in_compute=False)(
            c.BinaryAUROC(), num_bootstraps=4, sampling_strategy="multinomial"
        ),
        _scores,
    ),
    "ClasswiseWrapper": (lambda: wrappers.ClasswiseWrapper(_accuracy()), _classes),
    "MinMaxMetric": (lambda: wrappers.MinMaxMetric(c.BinaryAccuracy()), _scores),
    "MinMaxMetric[lists]": (lambda: wrappers.MinMaxMetric(c.BinaryAUROC()), _scores),
    "MultioutputWrapper": (lambda: wrappers.MultioutputWrapper(R2Score(), 3), _vectors),
    "MultioutputWrapper[pearson]": (
        lambda: wrappers.MultioutputWrapper(PearsonCorrCoef(), 3),
        _vectors,
    ),
    "MultitaskWrapper": (_multitask, _tasks),
    "BinaryTargetTransformer": (
        _of_predictions("BinaryTargetTransformer", threshold=0.5),
        _soft_target,
    ),
    "LambdaInputTransformer": (
        _of_predictions("LambdaInputTransformer", transform_pred=lambda x: 1 - x),
        _scores,
    ),
    "MetricInputTransformer": (_of_predictions("MetricInputTransformer"), _scores),
    "FeatureShare": (_shared, _real_and_fake),
    "MetricTracker": (_tracker, _scores),
    "MetricCollection[groups]": (lambda: _collection(groups=True), _scores),
    "MetricCollection[no groups]": (lambda: _collection(groups=False), _scores),
    "CompositionalMetric": (lambda: c.BinaryPrecision() + c.BinaryRecall() * 2, _scores),
    "CompositionalMetric[lists]": (lambda: c.BinaryAUROC() - c.BinaryAveragePrecision(), _scores),
}


def cases() -> Iterator[Case]:
    """Yield the cases of this group."""
    for name, (make, source) in _ALL.items():
        yield Case(name, "wrappers", make, source)
    yield Case(
        "Running", "wrappers", lambda: wrappers.Running(MeanSquaredError(), window=3), _scalars
    )
