"""Batches of numbers and labels."""

from typing import Any, Literal, Unpack, get_args

from hypothesis.strategies import SearchStrategy
from torch import Tensor

from distmetrics.errors import InputError
from distmetrics.testing.inputs.draws import (
    Batches,
    Options,
    batch_lists,
    check_count,
    grid,
    one_of,
    scaled,
    simplex,
)

Preds = Literal["probabilities", "labels", "logits"]


def binary(
    *,
    preds: Preds = "probabilities",
    ties: bool = True,
    **options: Unpack[Options],
) -> SearchStrategy[Batches]:
    """Batches ``(preds, target)`` for binary classification, both of shape ``(samples,)``.

    Args:
        preds: ``"probabilities"``, ``"labels"`` (0 or 1) or ``"logits"`` (from −4 to 4). Many
            metrics take numbers for logits only if one of the batch lies outside of 0 to 1, so what
            they make of logits depends on the batches.
        ties: whether two samples may have equal probabilities or logits.
        options: ``min_batches=1``, ``max_batches=5``, ``min_samples=1``, ``max_samples=6`` (samples
            of a batch), and ``dtype=torch.float32`` of what has floats.

    >>> from hypothesis import find
    >>> find(binary(preds="labels"), lambda batches: batches[0][0].sum() == 2)
    [(tensor([1, 1]), tensor([0, 0]))]
    """
    of_one_label = multilabel(1, preds=preds, ties=ties, **options)

    def squeezed(batches: Batches) -> Batches:
        return [(x[:, 0], y[:, 0]) for x, y in batches]

    return of_one_label.map(squeezed)


def multiclass(
    num_classes: int = 5,
    *,
    preds: Preds = "probabilities",
    **options: Unpack[Options],
) -> SearchStrategy[Batches]:
    """Batches ``(preds, target)`` for classification with several classes.

    Preds are of shape ``(samples, num_classes)``, or labels.

    Args:
        num_classes: number of classes, two or more.
        preds: ``"probabilities"``, whose rows sum to exactly 1, ``"labels"`` or ``"logits"``.
        options: as for :func:`binary`.

    >>> from hypothesis import find
    >>> find(multiclass(3), lambda batches: batches[0][1].max() == 2)
    [(tensor([[1., 0., 0.]]), tensor([2]))]
    """
    _check(preds)
    check_count("num_classes", num_classes, 2)

    def build(rows: Tensor) -> tuple[Any, ...]:
        target = rows[:, 0] % num_classes
        if preds == "probabilities":
            return simplex(rows[:, 2:]), target
        cells = rows[:, 1] if preds == "labels" else rows[:, 1:]
        return _scores(cells, preds, num_classes, ties=True), target

    return batch_lists(build, num_classes + 1, options)


def multilabel(
    num_labels: int = 3,
    *,
    preds: Preds = "probabilities",
    ties: bool = True,
    **options: Unpack[Options],
) -> SearchStrategy[Batches]:
    """Batches ``(preds, target)`` of shape ``(samples, num_labels)``: each label holds or not.

    Args:
        num_labels: number of labels.
        preds: as for :func:`binary`.
        ties: as for :func:`binary`.
        options: as for :func:`binary`.

    >>> from hypothesis import find
    >>> find(multilabel(2), lambda batches: bool(batches[0][1].all()))
    [(tensor([[0., 0.]]), tensor([[1, 1]]))]
    """
    _check(preds)
    check_count("num_labels", num_labels, 1)

    def build(rows: Tensor) -> tuple[Any, ...]:
        scores, target = rows.chunk(2, dim=1)
        return _scores(scores, preds, 2, ties), target % 2

    return batch_lists(build, 2 * num_labels, options)


def regression(
    num_outputs: int = 1,
    *,
    low: float = -2.0,
    high: float = 2.0,
    **options: Unpack[Options],
) -> SearchStrategy[Batches]:
    """Batches ``(preds, target)`` of numbers.

    Their shape is ``(samples,)``, or ``(samples, num_outputs)`` for more than one output.

    Args:
        num_outputs: number of outputs.
        low: the least number; some metrics need positive ones.
        high: the largest number.
        options: as for :func:`binary`.

    >>> from hypothesis import find
    >>> find(regression(low=0.5), lambda batches: bool((batches[0][0] > batches[0][1]).all()))
    [(tensor([0.5625]), tensor([0.5000]))]
    """
    check_count("num_outputs", num_outputs, 1)
    values = grid(low, high)

    def build(rows: Tensor) -> tuple[Any, ...]:
        halves = one_of(rows, values).chunk(2, dim=1)
        return halves if num_outputs > 1 else tuple(half[:, 0] for half in halves)

    return batch_lists(build, 2 * num_outputs, options)


def aggregation(
    *,
    weights: bool = False,
    nan: bool = False,
    low: float = -2.0,
    high: float = 2.0,
    **options: Unpack[Options],
) -> SearchStrategy[Batches]:
    """Batches ``(values,)``, or ``(values, weights)``, for sums, means and extremes.

    Args:
        weights: whether each value has a weight, from 0 to 1.
        nan: whether some values are NaN.
        low: as for :func:`regression`.
        high: as for :func:`regression`.
        options: as for :func:`binary`.

    >>> from hypothesis import find
    >>> find(aggregation(), lambda batches: len(batches) > 0)
    [(tensor([0.]),)]
    """
    values = grid(low, high) + [float("nan")] * nan

    def build(rows: Tensor) -> tuple[Any, ...]:
        numbers = one_of(rows[:, 0], values)
        return (numbers, scaled(rows[:, 1])) if weights else (numbers,)

    return batch_lists(build, 1 + weights, options)


def retrieval(
    *,
    num_queries: int = 3,
    graded: bool = False,
    ties: bool = False,
    **options: Unpack[Options],
) -> SearchStrategy[Batches]:
    """Batches ``(preds, target, indexes)``: scores of documents, their relevance, their queries.

    Args:
        num_queries: number of queries.
        graded: whether the relevance is from 0 to 3, and not 0 or 1.
        ties: whether two documents may have the same score. How those are ranked is up to the
            metric: most take them as they come, so that their value depends on the order of the
            samples.
        options: as for :func:`binary`.

    >>> from hypothesis import find
    >>> find(retrieval(), lambda batches: len(batches[0][0]) == 2)
    [(tensor([0.0000, 0.0156]), tensor([0, 0]), tensor([0, 0]))]
    """
    check_count("num_queries", num_queries, 1)

    def build(rows: Tensor) -> tuple[Any, ...]:
        scores, relevance, query = rows.unbind(dim=1)
        grades = 4 if graded else 2
        return scaled(scores, ties), relevance % grades, query % num_queries

    return batch_lists(build, 3, options)


def clustering(
    *,
    num_clusters: int = 3,
    num_features: int = 0,
    **options: Unpack[Options],
) -> SearchStrategy[Batches]:
    """Batches ``(preds, target)`` of cluster labels, or ``(data, labels)``.

    Args:
        num_clusters: number of clusters.
        num_features: columns of the data, 0 for labels on both sides.
        options: as for :func:`binary`.

    >>> from hypothesis import find
    >>> find(clustering(num_features=2), lambda batches: batches[0][1].sum() == 1)
    [(tensor([[0., 0.]]), tensor([1]))]
    """
    check_count("num_clusters", num_clusters, 1)
    check_count("num_features", num_features, 0)
    values = grid(-2.0, 2.0)

    def build(rows: Tensor) -> tuple[Any, ...]:
        labels = rows[:, 0] % num_clusters
        first = one_of(rows[:, 1:], values) if num_features else rows[:, 1] % num_clusters
        return first, labels

    return batch_lists(build, 1 + max(1, num_features), options)


def _scores(cells: Tensor, preds: Preds, classes: int, ties: bool) -> Tensor:
    if preds == "labels":
        return cells % classes
    numbers = scaled(cells, ties)
    return numbers if preds == "probabilities" else numbers * 8 - 4


def _check(preds: str) -> None:
    if preds not in get_args(Preds):
        kinds = ", ".join(map(repr, get_args(Preds)))
        raise InputError(f"preds must be one of {kinds}, got {preds!r}")
