"""check_metric, assert_distributed and laws that are called: what they find, show and refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from torch import Tensor
from torchmetrics import CatMetric, MeanMetric, Metric, SumMetric
from torchmetrics.classification import BinaryAUROC, BinaryF1Score, MulticlassAccuracy

import distmetrics as dm
from distmetrics.errors import ConfigurationError, InputError, InputTypeError, LawViolation
from distmetrics.testing import assert_distributed, check_metric, laws, relative, sharded
from distmetrics.testing.inputs import aggregation
from tests.backends import both_backends

NUMBERS = [(torch.arange(n) / 4 + n,) for n in (3, 2, 4, 1)]
BINARY = [(torch.tensor([0.2, 0.7, 0.9]), torch.tensor([0, 1, 0])), (torch.tensor([0.4]), torch.tensor([1]))]


class MeanOfMeans(Metric):
    """What people write: a mean of batch means, averaged over ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("means", torch.tensor(0.0), dist_reduce_fx="mean")
        self.add_state("batches", torch.tensor(0.0), dist_reduce_fx="mean")

    def update(self, x: Tensor) -> None:
        self.means = self.means + x.mean()
        self.batches = self.batches + 1

    def compute(self) -> Tensor:
        return self.means / self.batches


class Seeded(SumMetric):
    """Adds what differs between ranks with the same samples."""

    def update(self, value: Any) -> None:
        super().update(value + torch.rand(()))


def broken(report: Any) -> list[str]:
    return [violation.law.name for violation in report.violations]


def test_a_report_has_the_smallest_case_as_code_and_why_and_is_the_same_again() -> None:
    report = check_metric(MeanOfMeans, NUMBERS, max_examples=2)
    assert report == check_metric(MeanOfMeans, NUMBERS, max_examples=2)
    numbers = [each.law.number for each in report.violations]
    assert numbers == sorted(set(numbers))
    (split,) = (each for each in report.violations if each.law is laws.BATCH_SPLIT)
    assert [sum(len(batch[0]) for batch in shard) for shard in split.case] == [3], "halves of two have one mean"
    text = str(split)
    assert f"case = (\n        ({split.shards[0]}" in text
    assert "laws.BATCH_SPLIT(MeanOfMeans, case)" in text
    assert " ".join(laws.BATCH_SPLIT.page.split()) in " ".join(text.split())
    assert "That is the run on" in text
    with pytest.raises(LawViolation, match="MeanOfMeans breaks the law batch-split"):
        split.law(MeanOfMeans, split.case)


@pytest.mark.gloo
def test_a_rank_without_data_is_told_and_whose_sync_it_is() -> None:
    """torchmetrics' BinaryAUROC aborts gloo where a rank has no data, on processes as on threads."""
    for backend in ("threads", "gloo"):
        options: Any = {"laws": laws.NO_HANG, "sync": "own", "max_examples": 1, "world_sizes": (2,)}
        (found,) = check_metric(BinaryAUROC, BINARY[:1], backend=backend, **options).violations
        assert ": no data" in str(found) or "()" in repr(found.case) or backend == "threads"
        assert 'laws.NO_HANG(BinaryAUROC, case, sync="own")' in str(found)
    assert check_metric(BinaryAUROC, BINARY, max_examples=1).ok


@both_backends
def test_verdicts_on_threads_and_processes_are_the_same(backend: str) -> None:
    two = laws.SINGLE_IS_SHARDED | laws.RANKS_AGREE | laws.BATCH_SPLIT
    options: Any = {"laws": two, "world_sizes": (2,), "max_examples": 1, "backend": backend}
    assert check_metric(SumMetric, NUMBERS[:2], **options).ok
    assert "batch-split" in broken(check_metric(MeanOfMeans, NUMBERS[:2], **options))


@settings(max_examples=2)
@given(st.integers(1, 3))
def test_a_check_may_stand_in_a_test_of_hypothesis(n: int) -> None:
    assert check_metric(SumMetric, [(torch.ones(n),)], laws=laws.RANKS_AGREE, max_examples=1).ok
    found = check_metric(MeanOfMeans, [(torch.arange(n + 1.0),)], laws=laws.BATCH_SPLIT, max_examples=1)
    assert broken(found) == (["batch-split"] if n == 2 else [])  # equal halves have the same mean of means


drawn_only = settings(max_examples=30, database=None, phases=[Phase.generate, Phase.shrink])


def test_a_law_in_a_test_of_hypothesis_shrinks_to_a_case_that_can_be_pasted() -> None:
    @drawn_only
    @given(sharded(aggregation()))
    def judged(case: Any) -> None:
        laws.SAMPLE_ORDER(MeanOfMeans, case)

    with pytest.raises(AssertionError, match="breaks the law sample-order") as told:
        judged()
    (note,) = (note for note in told.value.__notes__ if "case=" in note)
    case = eval(note.partition("case=")[2].rpartition(",")[0], {"torch": torch})
    assert sum(len(batch[0]) for shard in case for batch in shard) <= 3
    with pytest.raises(LawViolation):
        laws.SAMPLE_ORDER(MeanOfMeans, case)


def test_laws_that_are_called_together_share_their_runs_and_raise_for_the_first() -> None:
    laws.DEFAULT(SumMetric, [[NUMBERS[0]], [], [NUMBERS[1]]])
    with pytest.raises(LawViolation, match="empty-batch-is-neutral"):
        laws.DEFAULT(MeanOfMeans, [NUMBERS[:1], NUMBERS[1:2] * 2])
    with pytest.raises(LawViolation, match="rank-order"):
        (laws.RANK_ORDER | laws.NO_HANG)(CatMetric, [NUMBERS[:1], NUMBERS[1:]])
    laws.BATCH_SPLIT(MeanOfMeans, [NUMBERS], equality=relative(10.0))


def test_a_case_that_says_nothing_is_no_success() -> None:
    """It is an error by itself; hypothesis draws another one, and complains if there is none."""
    with pytest.raises(InputError, match="the law rank-order says nothing about this case: only one"):
        laws.RANK_ORDER(SumMetric, [NUMBERS])
    with pytest.raises(InputError, match="there is no rank"):
        laws.NO_HANG(SumMetric, [])

    @settings(drawn_only, suppress_health_check=list(HealthCheck))
    @given(sharded(NUMBERS, world_sizes=[1]))
    def judged(case: Any) -> None:
        laws.RANK_ORDER(SumMetric, case)

    with pytest.raises(Unsatisfiable):
        judged()


@pytest.mark.parametrize(
    ("make", "options", "error", "text"),
    [
        (SumMetric(), {}, InputTypeError, "makes a new metric each time"),
        (dict, {}, ConfigurationError, "which distmetrics cannot sync"),
        (3, {}, InputTypeError, "make must be a function or class"),
        (MulticlassAccuracy, {}, ValueError, "num_classes"),
        (SumMetric, {"sync": "theirs"}, ConfigurationError, "sync must be"),
        (SumMetric, {"backend": "nccl"}, InputError, "backend must be"),
        (SumMetric, {"laws": "nope"}, InputTypeError, "laws must be laws of distmetrics.testing.laws, got 'nope'"),
        (SumMetric, {"laws": [laws.NO_HANG]}, InputTypeError, "laws must be laws"),
        (SumMetric, {"layouts": [{"mine": 2}]}, ConfigurationError, "the axis mine has no role"),
        (BinaryF1Score, {"max_examples": 1}, InputError, "no law could be judged of BinaryF1Score"),
        (lambda: dm.from_function(len, reduce={"x": "cat"}), {"sync": "own"}, ConfigurationError, "no sync of its own"),
    ],
)
def test_what_cannot_be_judged_is_refused(make: Any, options: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        check_metric(make, [("text", 3)] if make is BinaryF1Score else NUMBERS, **options)


def test_layouts_are_tried_where_they_are_given() -> None:
    report = check_metric(SumMetric, NUMBERS, laws=laws.NO_HANG, layouts=[{"dp": 2, "tp": 2}], max_examples=1)
    assert report.ok, report
    assert list(report.judged) == [laws.NO_HANG, laws.REPLICA_NEUTRAL, laws.AXIS_ORDER]
    assert report.skipped == {laws.OWNER_ONLY: "no layout has an owner"}
    with pytest.raises(LawViolation, match=r"(?s)replica-neutral.*along the axis tp"):
        assert_distributed(Seeded, NUMBERS, laws=laws.LAYOUTS, layouts=[{"tp": 3, "dp": 2}], max_examples=1)


@pytest.mark.gloo
def test_layouts_on_processes() -> None:
    mesh: Any = {"layouts": [{"dp": 2, "tp": 2}], "backend": "gloo"}
    assert check_metric(MeanMetric, NUMBERS, laws=laws.LAYOUTS, max_examples=1, **mesh).ok
