"""Ready hypothesis strategies of what metrics are updated with.

Each draws a list of batches, and a batch is the tuple of arguments of one ``update``. Numbers lie
on a grid of steps of 1/64 or wider, so every float dtype holds them, sums of them are exact, and
some of them are equal. What fails shrinks to few samples of zeros.

>>> from hypothesis import find
>>> find(binary(), lambda batches: len(batches) == 2)
[(tensor([0.]), tensor([0])), (tensor([0.]), tensor([0]))]
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, TypedDict, Unpack, get_args

import torch
from torch import Tensor

from distmetrics.errors import InputError, MissingDependencyError
from distmetrics.tree import map_leaves

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ImportError:
    raise MissingDependencyError.of("hypothesis", "distmetrics.testing.inputs") from None

__all__ = [
    "aggregation",
    "binary",
    "clustering",
    "detection",
    "image",
    "multiclass",
    "multilabel",
    "regression",
    "retrieval",
    "segmentation",
    "text",
]

Batches = list[tuple[Any, ...]]
Build = Callable[[Tensor], tuple[Any, ...]]
_LEVELS = 16  # steps between two whole numbers
_DISTINCT = 64  # and where no two numbers may be equal: bfloat16 holds multiples of 1/64 up to 2


class InputOptions(TypedDict, total=False):
    """How many batches, of how many samples, and the dtype of their floats.

    By default a batch has at least one sample.
    """

    min_batches: int
    max_batches: int
    min_samples: int
    max_samples: int
    dtype: torch.dtype


def batch_lists(
    build: Build,
    cells: int,
    *,
    min_batches: int = 1,
    max_batches: int = 5,
    min_samples: int = 1,
    max_samples: int = 6,
    dtype: torch.dtype = torch.float32,
) -> SearchStrategy[Batches]:
    """Lists of batches, each a tuple of arguments of ``update``.

    ``build`` makes the arguments of all samples together, of bytes of shape ``(samples, cells)``;
    each argument is a tensor or a list with one row or item a sample.

    Half of the lists are small: many faults show only where a rank has one sample or two.
    """
    _check_bounds("batches", min_batches, max_batches)
    _check_bounds("samples", min_samples, max_samples)
    sample = st.binary(min_size=cells, max_size=cells)

    def lists(most: int) -> SearchStrategy[list[list[bytes]]]:
        samples = sorted([min_samples, most, max_samples])[1]
        batches = sorted([min_batches, most, max_batches])[1]
        batch = st.lists(sample, min_size=min_samples, max_size=samples)
        return st.lists(batch, min_size=min_batches, max_size=batches)

    def finished(leaf: Any) -> Any:
        """Return a leaf of a batch as a tensor of its own."""
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(dtype if leaf.is_floating_point() else leaf.dtype, copy=True)

    def built(strings: list[list[bytes]]) -> Batches:
        """Build all samples in one go, then cut them into batches: that takes few operations."""
        numbers = list(b"".join(map(b"".join, strings)))
        rows = torch.tensor(numbers, dtype=torch.int64).reshape(-1, cells)
        arguments = build(rows)
        ends = pairwise(accumulate(map(len, strings), initial=0))
        cut = [tuple(argument[start:end] for argument in arguments) for start, end in ends]
        return map_leaves(finished, cut)

    return (lists(2) | lists(max(max_batches, max_samples))).map(built)


def _check_bounds(what: str, *bounds: int) -> None:
    """Refuse bounds of which one is below 0, or below the one before it."""
    if list(bounds) != sorted(bounds) or bounds[0] < 0:
        raise InputError(f"{what}: the bounds {bounds} must be 0 or more, the least one first")


def scaled(cells: Tensor, ties: bool = True) -> Tensor:
    """Return numbers from 0 to 1 in equal steps; without ties in as many steps as it takes."""
    if ties:
        return cells % (_LEVELS + 1) / _LEVELS
    count = cells.numel()
    steps = max(_DISTINCT, 1 << (2 * count).bit_length())
    drawn = cells.flatten() % (steps - count + 1)
    order = drawn.argsort(stable=True)
    # Each is one more than as it was drawn for each that is smaller.
    drawn[order] += torch.arange(count)
    return drawn.reshape(cells.shape) / steps


def simplex(cells: Tensor) -> Tensor:
    """Return rows of numbers that sum to exactly 1, with one number more than ``cells`` has."""
    cuts = (cells % (_LEVELS + 1)).sort(dim=1, descending=True).values
    edge = cuts.new_zeros(len(cuts), 1)
    bounds = torch.cat([edge + _LEVELS, cuts, edge], dim=1)
    return -torch.diff(bounds) / _LEVELS


def one_of(cells: Tensor, values: Sequence[float]) -> Tensor:
    """Return for each byte one of the values, the first for 0."""
    return torch.tensor(values)[cells % len(values)]


def grid(low: float, high: float) -> list[float]:
    """Return the numbers from ``low`` to ``high`` in equal steps, those nearest to 0 first."""
    numbers = [low + step / _LEVELS for step in range(int((high - low) * _LEVELS + 1))]
    if not 0 < len(numbers) <= 256:
        raise InputError(
            f"low={low} and high={high} make {len(numbers)} numbers; there must be 1 to 256"
        )
    return sorted(numbers, key=lambda number: (abs(number), -number))


Preds = Literal["probabilities", "labels", "logits"]


def binary(
    *,
    preds: Preds = "probabilities",
    ties: bool = True,
    **options: Unpack[InputOptions],
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
    return of_one_label.map(lambda batches: [(x[:, 0], y[:, 0]) for x, y in batches])


def multiclass(
    num_classes: int = 5,
    *,
    preds: Preds = "probabilities",
    **options: Unpack[InputOptions],
) -> SearchStrategy[Batches]:
    """Batches ``(preds, target)`` for classification with several classes.

    Preds are of shape ``(samples, num_classes)``, or labels. About half of them are right.

    Args:
        num_classes: number of classes, two or more.
        preds: ``"probabilities"``, whose rows sum to exactly 1, ``"labels"`` or ``"logits"``.
        options: as for :func:`binary`.

    >>> from hypothesis import find
    >>> find(multiclass(3), lambda batches: batches[0][1].max() == 2)
    [(tensor([[1., 0., 0.]]), tensor([2]))]
    """
    _check(preds)

    def build(rows: Tensor) -> tuple[Any, ...]:
        target, is_right = rows[:, 0] % num_classes, rows[:, 1] % 2
        if preds == "probabilities":
            scores = simplex(rows[:, 3:])
        else:
            scores = _scores(rows[:, 2:], preds, num_classes)
        if preds == "labels":
            return torch.where(is_right > 0, target, scores[:, 0]), target
        # The columns of a row that is right are turned until the largest number is the target's.
        turns = (target - scores.argmax(dim=1)) * is_right
        columns = (torch.arange(num_classes) - turns[:, None]) % num_classes
        return scores.gather(1, columns), target

    return batch_lists(build, num_classes + 2, **options)


def multilabel(
    num_labels: int = 3,
    *,
    preds: Preds = "probabilities",
    ties: bool = True,
    **options: Unpack[InputOptions],
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

    def build(rows: Tensor) -> tuple[Any, ...]:
        scores, target = rows.chunk(2, dim=1)
        return _scores(scores, preds, 2, ties), target % 2

    return batch_lists(build, 2 * num_labels, **options)


def regression(
    num_outputs: int = 1,
    *,
    low: float = -2.0,
    high: float = 2.0,
    **options: Unpack[InputOptions],
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
    values = grid(low, high)

    def build(rows: Tensor) -> tuple[Any, ...]:
        halves = one_of(rows, values).chunk(2, dim=1)
        return halves if num_outputs > 1 else tuple(half[:, 0] for half in halves)

    return batch_lists(build, 2 * num_outputs, **options)


def aggregation(
    *,
    weights: bool = False,
    nan: bool = False,
    low: float = -2.0,
    high: float = 2.0,
    **options: Unpack[InputOptions],
) -> SearchStrategy[Batches]:
    """Batches ``(values,)``, or ``(values, weights)``, for sums, means and extremes.

    Of three lists about one has only numbers below 0, and one only numbers above.

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
    both = grid(low, high)
    signs = both, [x for x in both if x < 0] or both, [x for x in both if x > 0] or both

    def build(rows: Tensor) -> tuple[Any, ...]:
        values = signs[int(rows[:1, 0].sum()) % 3] + [float("nan")] * nan
        numbers = one_of(rows[:, 1], values)
        return (numbers, scaled(rows[:, 2])) if weights else (numbers,)

    return batch_lists(build, 2 + weights, **options)


def retrieval(
    *,
    num_queries: int = 3,
    graded: bool = False,
    ties: bool = False,
    **options: Unpack[InputOptions],
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

    def build(rows: Tensor) -> tuple[Any, ...]:
        scores, relevance, query = rows.unbind(dim=1)
        grades = 4 if graded else 2
        return scaled(scores, ties), relevance % grades, query % num_queries

    return batch_lists(build, 3, **options)


def clustering(
    *,
    num_clusters: int = 3,
    num_features: int = 0,
    **options: Unpack[InputOptions],
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
    values = grid(-2.0, 2.0)

    def build(rows: Tensor) -> tuple[Any, ...]:
        labels = rows[:, 0] % num_clusters
        first = one_of(rows[:, 1:], values) if num_features else rows[:, 1] % num_clusters
        return first, labels

    return batch_lists(build, 1 + max(1, num_features), **options)


def _scores(cells: Tensor, preds: Preds, classes: int, ties: bool = True) -> Tensor:
    if preds == "labels":
        return cells % classes
    numbers = scaled(cells, ties)
    return numbers if preds == "probabilities" else numbers * 8 - 4


def _check(preds: str) -> None:
    if preds not in get_args(Preds):
        kinds = ", ".join(map(repr, get_args(Preds)))
        raise InputError(f"preds must be one of {kinds}, got {preds!r}")


_WORDS = ("a", "cat", "the", "dog", "sat", "on", "mat", "ran")
_SIDE = 4  # drawn numbers along each side of a picture


def text(
    *,
    references: tuple[int, int] | None = (1, 2),
    words: Sequence[str] = _WORDS,
    min_words: int = 1,
    max_words: int = 5,
    **options: Unpack[InputOptions],
) -> SearchStrategy[Batches]:
    """Batches ``(candidates, references)`` of sentences.

    Args:
        references: how many each candidate has, at least and at most, in a list of lists; with
            ``None`` it has one, and they are a list of sentences, as word error rates want them.
        words: what sentences are made of.
        min_words: a sentence has at least as many words; with 0 there are empty ones.
        max_words: and at most as many.
        options: as for :func:`binary`.

    >>> from hypothesis import find
    >>> find(text(), lambda batches: "cat" in batches[0][0][0])
    [(['cat'], [['a']])]
    >>> find(text(references=None), lambda batches: True)
    [(['a'], ['a'])]
    """
    least, most = references or (1, 1)
    _check_bounds("references", 1, least, most)
    _check_bounds("words of a sentence", min_words, max_words)
    if not words:
        raise InputError("text: there must be words")

    def sentence(cells: list[int]) -> str:
        drawn = [words[cell - 1] for cell in cells if cell]
        return " ".join(drawn + [words[0]] * (min_words - len(drawn)))

    def build(rows: Tensor) -> tuple[Any, ...]:
        counts = (least + rows[:, 0] % (most - least + 1)).tolist()
        places = (rows[:, 1:] % (len(words) + 1)).reshape(len(rows), 1 + most, max_words)
        sentences = [[*map(sentence, each)] for each in places.tolist()]
        candidates = [each[0] for each in sentences]
        answers = [each[1 : 1 + n] for each, n in zip(sentences, counts, strict=True)]
        if references is None:
            return candidates, [answer for (answer,) in answers]
        return candidates, answers

    return batch_lists(build, 1 + max_words * (1 + most), **options)


def detection(
    *,
    num_labels: int = 2,
    ties: bool = False,
    min_boxes: int = 0,
    max_boxes: int = 3,
    **options: Unpack[InputOptions],
) -> SearchStrategy[Batches]:
    """Batches ``(preds, target)``: for each image a dict of ``boxes`` (xyxy) and ``labels``.

    Those in preds have ``scores`` as well.

    Args:
        num_labels: number of labels.
        ties: whether two boxes may have the same score. Boxes with equal scores are ranked as they
            come, so with ties mean average precision depends on the order of the images.
        min_boxes: an image has at least as many boxes, on either side.
        max_boxes: and at most as many.
        options: as for :func:`binary`.

    >>> from hypothesis import find
    >>> find(detection(), lambda batches: len(batches[0][0][0]["boxes"]) == 1)
    [([{'boxes': tensor([[0., 0., 1., 1.]]), 'labels': tensor([0]), 'scores': tensor([0.])}],
      [{'boxes': tensor([], size=(0, 4)), 'labels': tensor([], dtype=torch.int64)}])]
    """
    _check_bounds("boxes", min_boxes, max_boxes)

    def side(rows: Tensor) -> list[dict[str, Tensor]]:
        cells = rows[:, 1:].reshape(len(rows), max_boxes, 6)
        counts = (min_boxes + rows[:, 0] % (max_boxes - min_boxes + 1)).tolist()
        corner = cells[..., :2] % 8
        size = 1 + cells[..., 2:4] % 8
        drawn = {
            "boxes": torch.cat([corner, corner + size], dim=-1).float(),
            "labels": cells[..., 4] % num_labels,
            "scores": scaled(cells[..., 5], ties),
        }
        return [
            {name: value[image, :count] for name, value in drawn.items()}
            for image, count in enumerate(counts)
        ]

    def build(rows: Tensor) -> tuple[Any, ...]:
        preds, target = map(side, rows.chunk(2, dim=1))
        for each in target:
            del each["scores"]
        return preds, target

    return batch_lists(build, 2 * (1 + 6 * max_boxes), **options)


def segmentation(
    num_classes: int = 3,
    *,
    size: int = 4,
    one_hot: bool = True,
    **options: Unpack[InputOptions],
) -> SearchStrategy[Batches]:
    """Batches ``(preds, target)`` of masks.

    They are one-hot, ``(samples, num_classes, size, size)``, or indices, ``(samples, size, size)``.

    Args:
        num_classes: number of classes.
        size: height and width, a multiple of 4.
        one_hot: whether masks are one-hot.
        options: as for :func:`binary`.

    >>> from hypothesis import find
    >>> [(preds, target)] = find(segmentation(), lambda batches: True)
    >>> preds.shape, target.sum()
    (torch.Size([1, 3, 4, 4]), tensor(16))
    """

    def build(rows: Tensor) -> tuple[Any, ...]:
        both = _pictures(rows % num_classes, 2, size)
        if not one_hot:
            return both[:, 0], both[:, 1]
        hot = torch.nn.functional.one_hot(both, num_classes)
        hot = hot.movedim(-1, 2).contiguous()
        return hot[:, 0], hot[:, 1]

    return batch_lists(build, _cells(2, size), **options)


def image(
    channels: int = 1,
    *,
    size: int = 16,
    **options: Unpack[InputOptions],
) -> SearchStrategy[Batches]:
    """Batches ``(preds, target)`` of pictures ``(samples, channels, size, size)`` from 0 to 1.

    Args:
        channels: of each picture.
        size: height and width, a multiple of 4; a picture is made of 4 × 4 tiles.
        options: as for :func:`binary`.

    >>> from hypothesis import find
    >>> [(preds, target)] = find(image(3), lambda batches: True)
    >>> preds.shape, target.sum()
    (torch.Size([1, 3, 16, 16]), tensor(0.))
    """

    def build(rows: Tensor) -> tuple[Any, ...]:
        both = scaled(_pictures(rows, 2 * channels, size))
        return both[:, :channels], both[:, channels:]

    return batch_lists(build, _cells(2 * channels, size), **options)


def _cells(layers: int, size: int) -> int:
    if size < _SIDE or size % _SIDE:
        raise InputError(f"size must be a multiple of {_SIDE}, got {size}")
    return layers * _SIDE * _SIDE


def _pictures(rows: Tensor, layers: int, size: int) -> Tensor:
    """Return ``(samples, layers, size, size)``, each picture 4 × 4 tiles."""
    tiles = rows.reshape(len(rows), layers, _SIDE, _SIDE)
    return torch.kron(tiles, tiles.new_ones(1, 1, size // _SIDE, size // _SIDE))
