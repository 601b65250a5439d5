"""Batches of sentences, boxes, masks and pictures."""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from distmetrics.errors import InputError
from distmetrics.testing.inputs.draws import (
    Batches,
    Options,
    batch_lists,
    check_count,
    scaled,
)

_WORDS = ("a", "cat", "the", "dog", "sat", "on", "mat", "ran")
_SIDE = 4  # drawn numbers along each side of a picture


def text(
    *,
    references: tuple[int, int] | None = (1, 2),
    words: Sequence[str] = _WORDS,
    min_words: int = 1,
    max_words: int = 5,
    **options: Unpack[Options],
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
    if not 0 <= min_words <= max_words or not 1 <= least <= most or not words:
        raise InputError(
            f"text: {min_words} to {max_words} words of {len(words)}, {least} to {most} "
            "references; there must be "
            "words, one reference or more, and no bound may lie below the one before it"
        )

    def sentence(cells: list[int]) -> str:
        places = [cell % (len(words) + 1) for cell in cells]
        drawn = [words[place - 1] for place in places if place]
        missing = min_words - len(drawn)
        return " ".join(drawn + [words[0]] * missing)

    def build(rows: Tensor) -> tuple[Any, ...]:
        candidates, answers = [], []
        for first, *cells in rows.tolist():
            count = least + first % (most - least + 1)
            candidate, *others = (
                sentence(cells[index * max_words : (index + 1) * max_words])
                for index in range(count + 1)
            )
            candidates.append(candidate)
            answers.append(others[0] if references is None else others)
        return candidates, answers

    return batch_lists(build, 1 + max_words * (1 + most), options)


def detection(
    *,
    num_labels: int = 2,
    ties: bool = False,
    min_boxes: int = 0,
    max_boxes: int = 3,
    **options: Unpack[Options],
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
    check_count("num_labels", num_labels, 1)
    if not 0 <= min_boxes <= max_boxes:
        raise InputError(
            f"detection: {min_boxes} to {max_boxes} boxes; there must be 0 or more, and max ≥ min"
        )

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
        images = []
        for image, count in enumerate(counts):
            of_image = {name: value[image, :count] for name, value in drawn.items()}
            images.append(of_image)
        return images

    def build(rows: Tensor) -> tuple[Any, ...]:
        preds, target = map(side, rows.chunk(2, dim=1))
        for each in target:
            del each["scores"]
        return preds, target

    return batch_lists(build, 2 * (1 + 6 * max_boxes), options)


def segmentation(
    num_classes: int = 3,
    *,
    size: int = 4,
    one_hot: bool = True,
    **options: Unpack[Options],
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
    check_count("num_classes", num_classes, 1)

    def build(rows: Tensor) -> tuple[Any, ...]:
        both = _pictures(rows % num_classes, 2, size)
        if not one_hot:
            return both[:, 0], both[:, 1]
        hot = torch.nn.functional.one_hot(both, num_classes)
        hot = hot.movedim(-1, 2).contiguous()
        return hot[:, 0], hot[:, 1]

    return batch_lists(build, _cells(2, size), options)


def image(
    channels: int = 1,
    *,
    size: int = 16,
    **options: Unpack[Options],
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
    check_count("channels", channels, 1)

    def build(rows: Tensor) -> tuple[Any, ...]:
        both = scaled(_pictures(rows, 2 * channels, size))
        return both[:, :channels], both[:, channels:]

    return batch_lists(build, _cells(2 * channels, size), options)


def _cells(layers: int, size: int) -> int:
    if size < _SIDE or size % _SIDE:
        raise InputError(f"size must be a multiple of {_SIDE}, got {size}")
    return layers * _SIDE * _SIDE


def _pictures(rows: Tensor, layers: int, size: int) -> Tensor:
    """Return ``(samples, layers, size, size)``, each picture 4 × 4 tiles."""
    tiles = rows.reshape(len(rows), layers, _SIDE, _SIDE)
    return tiles.repeat_interleave(size // _SIDE, 2).repeat_interleave(size // _SIDE, 3)
