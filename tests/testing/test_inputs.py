"""Ready strategies: what they promise of shapes and values, that options do what they say, that they shrink."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from distmetrics.errors import InputError, InputTypeError
from distmetrics.testing import inputs
from tests import warm

SIZES = {"min_batches": 2, "max_batches": 3, "min_samples": 0, "max_samples": 4}
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
@settings(max_examples=20)
@given(st.data())
def test_batches_have_the_sizes_asked_for_and_arguments_of_one_length(name: str, data: st.DataObject) -> None:
    batches = data.draw(ALL[name](**SIZES))
    assert 2 <= len(batches) <= 3
    for batch in batches:
        assert isinstance(batch, tuple)
        assert len({len(argument) for argument in batch}) == 1
        assert len(batch[0]) <= 4


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


@pytest.mark.parametrize("name", ["binary", "multilabel", "retrieval", "detection"])
def test_with_ties_some_scores_are_equal(name: str) -> None:
    def has_tie(batches: list[tuple[Any, ...]]) -> bool:
        found = [each["scores"] if isinstance(each, dict) else each.flatten() for batch in batches for each in batch[0]]
        scores = torch.cat(found)
        return len(scores.unique()) < len(scores)

    assert find(ALL[name](ties=True), has_tie)


@given(inputs.multiclass(4))
@settings(max_examples=50)
def test_rows_of_probabilities_sum_to_exactly_one(batches: list[tuple[Tensor, Tensor]]) -> None:
    preds, target = joined(batches, 0), joined(batches, 1)
    assert preds.shape == (len(target), 4)
    assert torch.equal(preds.sum(1), torch.ones(len(preds)))
    assert ((preds >= 0) & (preds <= 1)).all()
    assert target.min() >= 0
    assert target.max() < 4


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=10)
@given(st.data())
def test_the_dtype_is_that_asked_for(dtype: torch.dtype, data: st.DataObject) -> None:
    for name in ("binary", "multiclass", "multilabel", "regression", "aggregation", "retrieval", "image"):
        assert all(batch[0].dtype == dtype for batch in data.draw(ALL[name](dtype=dtype)))


@given(inputs.binary(preds="logits"), inputs.multilabel(2, preds="labels"), inputs.multiclass(3, preds="labels"))
@settings(max_examples=30)
def test_preds_are_of_the_kind_asked_for(logits: Any, labels: Any, classes: Any) -> None:
    assert joined(logits, 0).abs().max() <= 4
    assert set(joined(labels, 0).flatten().tolist()) <= {0, 1}
    assert set(joined(classes, 0).tolist()) <= {0, 1, 2}
    assert joined(classes, 0).dtype == torch.int64


def test_logits_lie_on_both_sides_of_zero_and_beyond_one() -> None:
    find(inputs.binary(preds="logits"), lambda batches: bool(joined(batches, 0).max() > 1))
    find(inputs.binary(preds="logits"), lambda batches: bool(joined(batches, 0).min() < 0))


@given(inputs.regression(2, low=0.25, high=1.5), inputs.aggregation(weights=True, low=-1.0, high=0.0))
@settings(max_examples=30)
def test_numbers_keep_within_bounds(pairs: Any, weighted: Any) -> None:
    preds, target = joined(pairs, 0), joined(pairs, 1)
    assert preds.shape == target.shape == (len(preds), 2)
    assert preds.min() >= 0.25
    assert preds.max() <= 1.5
    assert joined(weighted, 0).max() <= 0
    assert 0 <= joined(weighted, 1).min() <= joined(weighted, 1).max() <= 1


def test_nan_comes_only_where_it_is_asked_for() -> None:
    find(inputs.aggregation(nan=True), lambda batches: bool(joined(batches, 0).isnan().any()))

    @given(inputs.aggregation())
    @settings(max_examples=30)
    def never(batches: Any) -> None:
        assert not joined(batches, 0).isnan().any()

    never()


@given(inputs.retrieval(num_queries=2, graded=True))
@settings(max_examples=30)
def test_retrieval_has_queries_and_grades(batches: Any) -> None:
    assert set(joined(batches, 2).tolist()) <= {0, 1}
    assert set(joined(batches, 1).tolist()) <= {0, 1, 2, 3}


@given(inputs.text(references=(2, 3), min_words=2, max_words=4))
@settings(max_examples=30)
def test_text_has_as_many_words_and_references_as_asked_for(batches: Any) -> None:
    for candidates, references in batches:
        sentences = [*candidates, *(sentence for each in references for sentence in each)]
        assert all(2 <= len(sentence.split()) <= 4 for sentence in sentences)
        assert all(2 <= len(each) <= 3 for each in references)


def test_text_may_be_empty_or_without_lists() -> None:
    assert find(inputs.text(references=None, min_words=0), lambda _: True) == [([""], [""])]


@given(inputs.detection(num_labels=2, min_boxes=1, max_boxes=2))
@settings(max_examples=30)
def test_boxes_are_boxes(batches: Any) -> None:
    for preds, target in batches:
        for each in [*preds, *target]:
            boxes, labels = each["boxes"], each["labels"]
            assert boxes.shape == (len(labels), 4)
            assert 1 <= len(labels) <= 2
            assert (boxes[:, :2] < boxes[:, 2:]).all()
            assert set(labels.tolist()) <= {0, 1}
        assert all(len(each["scores"]) == len(each["boxes"]) for each in preds)


@given(inputs.segmentation(3, size=8), inputs.segmentation(3, one_hot=False), inputs.image(2, size=12))
@settings(max_examples=10)
def test_masks_and_pictures(masks: Any, indices: Any, pictures: Any) -> None:
    assert joined(masks, 0).shape[1:] == (3, 8, 8)
    assert (joined(masks, 1).sum(1) == 1).all()
    assert joined(indices, 0).shape[1:] == (4, 4)
    assert joined(pictures, 0).shape[1:] == joined(pictures, 1).shape[1:] == (2, 12, 12)


@given(inputs.clustering(num_clusters=2, num_features=3), inputs.clustering(num_clusters=2))
@settings(max_examples=10)
def test_clusters(data: Any, labels: Any) -> None:
    assert joined(data, 0).shape[1:] == (3,)
    assert set(joined(data, 1).tolist()) | set(joined(labels, 0).tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: inputs.binary(preds="scores"), "preds must be one of"),  # type: ignore[arg-type]
        (lambda: inputs.multiclass(1), "num_classes must be 2 or more"),
        (lambda: inputs.regression(low=2, high=1), "make 0 numbers"),
        (lambda: inputs.regression(low=0, high=100), "1 to 256"),
        (lambda: inputs.binary(min_batches=3, max_batches=2), "min ≤ max"),
        (lambda: inputs.image(size=6), "multiple of 4"),
        (lambda: inputs.text(words=[]), "there must be words"),
        (lambda: inputs.detection(min_boxes=2, max_boxes=1), "2 to 1 boxes"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(InputTypeError, match="'max_size' is no option; options are min_batches"):
        inputs.binary(max_size=3)  # type: ignore[call-arg]


def test_a_failing_sample_is_found_alone() -> None:
    """One sample of many fails: the others go, and what is left of it is plain."""

    def fails(batches: Any) -> bool:
        return any(bool(((preds > 0.5) & (target == 1)).any()) for preds, target in batches)

    [(preds, target)] = find(inputs.binary(), fails)
    assert (preds.tolist(), target.tolist()) == ([0.5625], [1])


def test_without_hypothesis_one_sentence_and_the_command() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; import distmetrics.testing.inputs"
    done = warm.run("-c", code, env=os.environ)
    assert "distmetrics.testing.inputs needs hypothesis, which is not installed." in done.stderr
    assert "pip install hypothesis" in done.stderr
