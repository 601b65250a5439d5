"""Evaluation inside the real Lightning: every sample counts once, in metrics and in logged numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torchmetrics

from distmetrics import SingleCommunicator
from distmetrics.data import fresh
from distmetrics.testing import run
from tests.integrations.exact_evaluation import by_length, everything, odd_ones

pytest.importorskip("lightning.pytorch")
from distmetrics.integrations.lightning_loops import counted


def check(ranks: list[Any], alone: dict[str, Any]) -> None:
    """Hold what every rank has logged against what one process logs."""
    for rank in ranks:
        for name, result in rank.items():
            expected = dict(alone[name]["logged"])
            logged = dict(result["logged"])
            assert logged.pop("ranks") == len(ranks) * expected.pop("ranks"), name
            for key in [key for key in expected if "_step" in key]:  # in one process, of other samples
                del expected[key], logged[key]
            assert logged == pytest.approx(expected, rel=1e-5), name


@pytest.mark.gloo
@pytest.mark.timeout(400)
def test_numbers_are_those_of_one_process() -> None:
    """Means, sums, extremes and metrics, of few samples and of many; in fit, validate and test; in streams."""
    ranks = run(2, everything, backend="gloo")
    check(ranks, everything(SingleCommunicator()))
    first, second = (rank["13 in batches of 2"] for rank in ranks)
    assert (first["rows"], second["rows"]) == ([2, 2, 2, 1], [2, 2, 1, 1])
    assert [rank["13 in batches of 1"]["rows"] for rank in ranks] == [[1] * 7, [1] * 6 + [0]]
    # A step's value is the mean over the samples of its round: together they are the mean of all.
    rounds = [4, 4, 3, 2]
    total = sum(rows * loss for rows, loss in zip(rounds, first["steps"], strict=True))
    assert first["steps"] == second["steps"]
    assert total / 13 == pytest.approx(first["logged"]["twice_epoch"], rel=1e-5)


@pytest.mark.gloo
@pytest.mark.timeout(400)
def test_more_ranks_than_samples() -> None:
    """A rank without any takes part with a batch that no number sees."""
    ranks = run(3, by_length, "lightning.pytorch", backend="gloo")
    check(ranks, by_length(SingleCommunicator(), "lightning.pytorch"))
    assert [rank["1 in batches of 4"]["rows"] for rank in ranks] == [[1], [0], [0]]


@pytest.mark.gloo
@pytest.mark.timeout(400)
def test_what_is_limited_left_alone_or_refused() -> None:
    """Limits count rounds, a loader of one's own stays as it is, and each rank is told what can't be done."""
    for rank, result in enumerate(run(2, odd_ones, backend="gloo")):
        (before, (texts, after)) = result["warned"]
        assert (before, after) == ([[], []], [])
        assert len(texts) == (rank == 0)
        assert all(re.match(r"1 of 14 samples .*\.lightning\.SyncMetrics\(\)", text) for text in texts)
        assert result["limited"] == [2, 2]
        assert sum(result["left alone"]) == 13
        assert "has no batches on some ranks" in result["empty"]
        assert "rank 1  0 batches" in result["empty"]
        assert "takes batches of several loaders can't be told" in result["pairs"]
        assert result["after"] == 1.0


def test_a_batch_that_fills_up_leaves_metrics_as_they_were() -> None:
    """Also states that are changed in place, and what metrics of a collection share."""
    module = torch.nn.Module()
    module.metrics = torchmetrics.MetricCollection({"a": torchmetrics.SumMetric(), "b": torchmetrics.SumMetric()})
    module.kept = torchmetrics.CatMetric()
    for filler in (True, False, True):
        with counted(module, filler=filler):
            module.metrics.update(torch.tensor(2.0))
            module.kept.update(torch.tensor(2.0))
            assert len(fresh(torch.ones(3))) == (0 if filler else 3)
    assert {name: float(value) for name, value in module.metrics.compute().items()} == {"a": 2.0, "b": 2.0}
    assert module.kept.compute().tolist() == 2.0
    assert [metric._update_count for metric in (*module.metrics.values(), module.kept)] == [1, 1, 1]


def test_a_batch_that_fills_up_and_fails() -> None:
    """Metrics are put back all the same."""
    module = torch.nn.Module()
    module.total = torchmetrics.SumMetric()
    module.total.update(torch.tensor(2.0))

    def step() -> None:
        with counted(module, filler=True):
            module.total.update(torch.tensor(3.0))
            float("no number")

    with pytest.raises(ValueError, match="could not convert"):
        step()
    assert float(module.total.compute()) == 2.0
