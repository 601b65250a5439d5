"""Ready strategies: what they promise of shapes and values, that options do what they say, that they shrink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from distmetrics.errors import InputError
from distmetrics.testing import inputs

ALL: dict[str, Callable[..., SearchStrategy[Any]]] = {name: getattr(inputs, name) for name in inputs.__all__}
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [x for item in value for x in tensors(item)] if isinstance(value, list | tuple) else []


def joined(batches: list[tuple[Any, ...]], argument: int) -> Tensor:
    return torch.cat([batch[argument] for batch in batches])


@pytest.mark.parametrize("name", ALL)
def test_every_strategy_shrinks_to_one_batch_of_one_sample(name: str) -> None:
    batches = find(ALL[name](), lambda _: True)
    assert [len(argument) for batch in batches for argument in batch] == [1] * len(batches[0])


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"text"}))
@settings(max_examples=20)
@given(st.data())
def test_numbers_are_held_exactly_by_every_float_dtype(name: str, data: st.DataObject) -> None:
    for x in tensors(data.draw(ALL[name]())):
        for dtype in FLOATS:
            assert torch.equal(x.to(dtype).to(x.dtype), x)


@pytest.mark.parametrize("name", ["binary", "multilabel", "retrieval", "detection"])
@settings(max_examples=30)
@given(st.data())
def test_without_ties_all_scores_differ(name: str, data: st.DataObject) -> None:
    batches = data.draw(ALL[name](ties=False, max_batches=6, min_samples=3, max_samples=8))
    if name == "detection":
        scores = torch.cat([each["scores"] for batch in batches for each in batch[0]])
    else:
        scores = joined(batches, 0).flatten()
    assert len(scores.unique()) == scores.numel()


@given(inputs.multiclass(4))
@settings(max_examples=50)
def test_rows_of_probabilities_sum_to_exactly_one(batches: list[tuple[Tensor, Tensor]]) -> None:
    preds = joined(batches, 0)
    assert torch.equal(preds.sum(1), torch.ones(len(preds)))
    assert preds.min() >= 0


@given(inputs.detection(min_boxes=1))
@settings(max_examples=30)
def test_boxes_have_an_area(batches: Any) -> None:
    for boxes in (each["boxes"] for batch in batches for side in batch for each in side):
        assert (boxes[:, :2] < boxes[:, 2:]).all()


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: inputs.binary(preds="scores"), InputError, "preds must be one of"),  # type: ignore[arg-type]
        (lambda: inputs.regression(low=2, high=1), InputError, "make 0 numbers"),
        (lambda: inputs.regression(low=0, high=100), InputError, "1 to 256"),
        (lambda: inputs.binary(min_batches=3, max_batches=2), InputError, r"batches: the bounds \(3, 2\)"),
        (lambda: inputs.image(size=6), InputError, "multiple of 4"),
        (lambda: inputs.text(words=[]), InputError, "there must be words"),
        (lambda: inputs.detection(min_boxes=2, max_boxes=1), InputError, r"boxes: the bounds \(2, 1\)"),
        (lambda: inputs.binary(max_size=3), TypeError, "max_size"),  # type: ignore[call-arg]
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


def test_a_failing_sample_is_found_alone() -> None:
    """One sample of many fails: the others go, and what is left of it is plain."""

    def fails(batches: Any) -> bool:
        return any(bool(((preds > 0.5) & (target == 1)).any()) for preds, target in batches)

    [(preds, target)] = find(inputs.binary(), fails)
    assert (preds.tolist(), target.tolist()) == ([0.5625], [1])
