"""check_metric, assert_distributed and replay: what they find, show and refuse."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from distmetrics.testing.report import listeners
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics import CatMetric, MaxMetric, MeanMetric, Metric, SumMetric
from torchmetrics.classification import BinaryAUROC, BinaryF1Score, MulticlassAccuracy

import distmetrics as dm
from distmetrics.errors import ConfigurationError, InputError, InputTypeError, LawViolation
from distmetrics.testing import Batch, assert_distributed, check_metric, function, laws, relative, replay
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


def broken(report: Any) -> list[str]:
    return [violation.law.name for violation in report.violations]


@pytest.mark.parametrize("make", [SumMetric, MaxMetric, MeanMetric])
def test_right_metrics_are_right(make: Any) -> None:
    """With every default law judged or skipped for a reason."""
    report = check_metric(make, NUMBERS, max_examples=4)
    assert report.ok, report
    assert set(report.judged) | set(report.skipped) == laws.DEFAULT.chosen
    assert laws.SINGLE_IS_SHARDED in report.judged
    assert "laws hold" in str(report)


def test_the_smallest_case_is_shown() -> None:
    """Law, shards, expected, got, and a program."""
    report = check_metric(MeanOfMeans, NUMBERS, max_examples=2)
    assert "sample-order" in broken(report)
    assert "batch-split" in broken(report)
    first = next(v for v in report.violations if v.law is laws.BATCH_SPLIT)
    assert first.shards == ("(torch.tensor([3.0, 3.25, 3.5]),)",) or len(first.shards) == 1
    assert "breaks the law batch-split (8)" in str(first)
    assert "rank 0 got" in str(first)


@pytest.mark.parametrize(
    "make", [MeanOfMeans, functools.partial(MeanMetric, nan_strategy="ignore"), lambda: CatMetric()]
)
def test_the_snippet_shows_it_again(make: Any) -> None:
    """In at most 15 lines, with the same verdict."""
    report = check_metric(make, NUMBERS, max_examples=2, laws=laws.DEFAULT | laws.LARGE_COUNTS)
    assert report.violations
    for violation in report.violations:
        assert len(violation.snippet.splitlines()) <= 15
        printed: list[Any] = []
        space = {"print": printed.append, "MeanOfMeans": MeanOfMeans}
        exec(violation.snippet, space)
        assert broken(printed[0]) == [violation.law.name], violation


def test_the_snippet_has_batches_of_both_kinds_of_arguments() -> None:
    """Positional ones and named ones take a class that the program must import."""

    rows = [Batch((torch.tensor([float(i)]),), {"weight": torch.tensor([2.0])}) for i in range(1, 4)]
    make = functools.partial(MeanMetric, nan_strategy="ignore")
    report = check_metric(make, rows, max_examples=1, laws=laws.NAN_EVERYWHERE | laws.LARGE_COUNTS)
    assert report.violations
    for violation in report.violations:
        printed: list[Any] = []
        exec(violation.snippet, {"print": printed.append})
        assert broken(printed[0]) == [violation.law.name], violation


def test_it_raises_with_the_report() -> None:
    """A whole test in a line."""
    with pytest.raises(LawViolation, match="MeanOfMeans breaks the law"):
        assert_distributed(MeanOfMeans, NUMBERS, max_examples=1)
    assert_distributed(SumMetric, NUMBERS, max_examples=1)


def test_a_law_declared_off_is_in_the_report() -> None:
    """With its reason."""
    ordered = laws.DEFAULT.off(laws.RANK_ORDER, because="a list").off(laws.SAMPLE_ORDER, because="a list")
    report = check_metric(CatMetric, NUMBERS, laws=ordered, max_examples=2)
    assert report.ok, report
    assert "off      rank-order: a list" in str(report)
    assert not check_metric(CatMetric, NUMBERS, max_examples=2).ok


def test_one_law_alone() -> None:
    """Is judged alone."""
    report = check_metric(CatMetric, NUMBERS, laws=laws.RANKS_AGREE, max_examples=2)
    assert list(report.judged) == [laws.RANKS_AGREE]
    assert report.ok


def test_the_equality_decides() -> None:
    """A rough one forgives what the usual one does not."""
    rough = laws.Laws.of(laws.BATCH_SPLIT).equal(relative(10.0))
    assert check_metric(MeanOfMeans, NUMBERS, laws=rough, max_examples=1).ok
    assert not check_metric(MeanOfMeans, NUMBERS, laws=laws.BATCH_SPLIT, max_examples=1).ok


def test_the_own_sync_is_judged_on_threads() -> None:
    """torchmetrics' BinaryAUROC aborts gloo where a rank has no data; distmetrics' sync does not."""
    own = check_metric(BinaryAUROC, BINARY, sync="own", max_examples=2)
    assert "no-hang" in broken(own)
    assert "state-restored" in broken(own)
    assert check_metric(BinaryAUROC, BINARY, max_examples=2).ok


def mean_by_hand(batches: list[Any]) -> Tensor:
    """A function that does its own collectives, rightly."""
    x = torch.cat([torch.zeros(0), *(batch[0] for batch in batches)])
    return dm.all_reduce(x.sum()) / dm.all_reduce(torch.tensor(float(len(x))))


def mean_of_ranks(batches: list[Any]) -> Tensor:
    """And wrongly: ranks weigh the same."""
    x = torch.cat([torch.zeros(0), *(batch[0] for batch in batches)])
    return dm.mean(x.mean() if len(x) else torch.tensor(0.0), weight=1)


def on_some_ranks(batches: list[Any]) -> Tensor:
    """And in the way that hangs a cluster."""
    x = torch.tensor(float(sum(len(batch[0]) for batch in batches)))
    return dm.all_reduce(x) if batches else x


def test_functions_with_their_own_collectives() -> None:
    """Are judged by the laws that need no state."""
    assert check_metric(mean_by_hand, NUMBERS, max_examples=3).ok
    assert "single-is-sharded" in broken(check_metric(mean_of_ranks, NUMBERS, max_examples=3))
    assert broken(check_metric(on_some_ranks, NUMBERS, max_examples=3)) == ["no-hang"]
    assert check_metric(function(mean_by_hand), NUMBERS, max_examples=1).metric


def test_a_strategy_of_batches() -> None:
    """Draws them, and the same for one seed."""
    drawn: list[Any] = []
    floats = st.lists(st.integers(1, 4).map(lambda n: (torch.arange(n).float(),)), min_size=1, max_size=3)
    batches = floats.map(lambda given: drawn.append(given) or given)  # type: ignore[func-returns-value]
    assert check_metric(SumMetric, batches, max_examples=5, seed=3).ok
    first, drawn[:] = [len(x) for x in drawn], []
    check_metric(SumMetric, batches, max_examples=5, seed=3)
    assert [len(x) for x in drawn] == first


@settings(max_examples=3)
@given(st.integers(1, 3))
def test_inside_of_another_property(n: int) -> None:
    """A check may stand in a test that hypothesis runs."""
    assert check_metric(SumMetric, [(torch.ones(n),)], max_examples=1).ok


def test_listeners_hear_of_every_report() -> None:
    """As the plugin's page does."""
    heard: list[Any] = []
    listeners.append(heard.append)
    try:
        report = check_metric(SumMetric, NUMBERS, max_examples=1)
    finally:
        listeners.remove(heard.append)
    assert heard == [report]
    assert report.to_dict()["ok"] is True


def test_a_replay_judges_exactly_these_shards() -> None:
    """Batches with named and positional arguments alike."""
    shards = [[Batch((torch.tensor([1.0]),), {"weight": torch.tensor([2.0])})], [(torch.tensor([4.0]),)]]
    report = replay(MeanMetric, shards, law=laws.SINGLE_IS_SHARDED)
    assert report.ok
    assert report.judged[laws.SINGLE_IS_SHARDED] == 1


@both_backends
def test_verdicts_on_threads_and_processes(backend: str) -> None:
    """Are the same, for a right metric and a wrong one."""
    two = laws.SINGLE_IS_SHARDED | laws.RANKS_AGREE | laws.BATCH_SPLIT
    options: Any = {"laws": two, "world_sizes": (2,), "max_examples": 1, "backend": backend}
    assert check_metric(SumMetric, NUMBERS[:2], **options).ok
    assert "batch-split" in broken(check_metric(MeanOfMeans, NUMBERS[:2], **options))


@pytest.mark.gloo
def test_a_crash_is_a_verdict() -> None:
    """A rank that gloo aborts breaks a law, and not the test run."""
    report = replay(BinaryAUROC, [[BINARY[0]], []], law=laws.NO_HANG, sync="own", backend="gloo")
    assert broken(report) == ["no-hang"]


@pytest.mark.parametrize(
    ("make", "batches", "error", "text"),
    [
        (SumMetric(), NUMBERS, InputTypeError, "makes a new metric each time"),
        (dict, NUMBERS, ConfigurationError, "which distmetrics cannot sync"),
        (SumMetric, [], InputError, "batches is empty"),
        (SumMetric, 3, InputTypeError, "batches must be a list"),
        (SumMetric, "abc", InputTypeError, "batches must be a list"),
        (3, NUMBERS, InputTypeError, "make must be a function or class"),
    ],
)
def test_what_cannot_be_judged_is_refused(make: Any, batches: Any, error: Any, text: str) -> None:
    """With what to do."""
    with pytest.raises(error, match=text):
        check_metric(make, batches)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sync": "theirs"}, "sync must be"),
        ({"backend": "nccl"}, "backend must be"),
        ({"world_sizes": ()}, "world_sizes must be"),
        ({"laws": "nope"}, "laws must be laws of distmetrics.testing.laws, got 'nope'"),
        ({"laws": [laws.NO_HANG]}, "laws must be laws"),
        ({"world_sizes": (0, 2)}, "world_sizes must be"),
    ],
)
def test_options_that_cannot_be_are_refused(options: Any, text: str) -> None:
    """Before anything is run."""
    with pytest.raises(InputError if "sync" not in options else ConfigurationError, match=text):
        check_metric(SumMetric, NUMBERS, **options)


def test_batches_that_update_refuses_are_no_success() -> None:
    """A report without a judgement would read as if all were well."""
    with pytest.raises(InputError, match="no law could be judged of BinaryF1Score"):
        check_metric(BinaryF1Score, [("text", 3)], max_examples=1)


def test_a_metric_without_a_sync_of_its_own_is_told() -> None:
    """Its ranks would each compute of their own data."""
    with pytest.raises(ConfigurationError, match="no sync of its own"):
        check_metric(lambda: dm.from_function(len, reduce={"x": "cat"}), [{"x": torch.ones(2)}], sync="own")


def test_a_metric_that_needs_arguments_is_told() -> None:
    """The constructor's own error reaches the user."""
    with pytest.raises(ValueError, match="num_classes"):
        check_metric(MulticlassAccuracy, NUMBERS)
    assert check_metric(BinaryF1Score, BINARY, max_examples=1).ok


class Seeded(SumMetric):
    """Adds what differs between ranks with the same samples."""

    def update(self, value: Any) -> None:
        super().update(value + torch.rand(()))


def test_layouts_are_tried_where_they_are_given() -> None:
    report = check_metric(SumMetric, NUMBERS, laws=laws.NO_HANG, layouts=[{"dp": 2, "tp": 2}], max_examples=1)
    assert report.ok, report
    assert list(report.judged) == [laws.NO_HANG, laws.REPLICA_NEUTRAL, laws.AXIS_ORDER]
    assert report.skipped == {laws.OWNER_ONLY: "no layout has an owner"}


def test_a_layout_shows_what_breaks_and_the_program_too() -> None:
    report = check_metric(Seeded, NUMBERS, laws=laws.NO_HANG, layouts=[{"tp": 3, "dp": 2}], max_examples=1)
    assert broken(report) == ["replica-neutral"]
    (violation,) = report.violations
    assert "along the axis tp" in str(violation)
    assert "layouts=[{'tp': 3, 'dp': 2}]" in violation.snippet
    with pytest.raises(LawViolation, match="replica-neutral"):
        assert_distributed(Seeded, NUMBERS, layouts=[{"dp": 2, "tp": 2}], max_examples=1)


def test_an_axis_whose_name_says_nothing() -> None:
    with pytest.raises(ConfigurationError, match="the axis mine has no role"):
        check_metric(SumMetric, NUMBERS, layouts=[{"mine": 2}])


@pytest.mark.gloo
def test_layouts_on_processes() -> None:
    report = check_metric(
        MeanMetric, NUMBERS, laws=laws.LAYOUTS, layouts=[{"dp": 2, "tp": 2}], max_examples=1, backend="gloo"
    )
    assert report.ok, report
