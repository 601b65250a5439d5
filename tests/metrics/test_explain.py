"""What is said of a sync beforehand is what it then does: collectives and bytes, in small worlds and large."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAUROC, MulticlassConfusionMatrix, MulticlassF1Score
from torchmetrics.regression import PearsonCorrCoef

from distmetrics import explain, synced
from distmetrics.collectives import exchange
from distmetrics.metrics.plan import Cost
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator
from tests.metrics.samples import SAMPLES, batches, lists_follow

pytestmark = pytest.mark.filterwarnings("ignore:Metric `.*` will save all targets")
MADE = {
    "counts": lambda: MulticlassF1Score(10),
    "large": lambda: MulticlassConfusionMatrix(100),
    "lists": lambda: MulticlassAUROC(10),
    "all": lambda: MetricCollection([MulticlassF1Score(10), MulticlassAUROC(10)]),
    "stack": PearsonCorrCoef,
}


def fed(name: str, rows: int = 8) -> Any:
    metric = MADE[name]()
    if name == "stack":
        metric.update(torch.arange(float(rows)), torch.arange(float(rows)) ** 2)
    else:
        classes = 100 if name == "large" else 10
        scores = torch.rand(rows, classes) if name in ("lists", "all") else torch.randint(classes, (rows,))
        metric.update(scores, torch.randint(classes, (rows,)))
    return metric


def transcript(comm: Any, name: str) -> Cost:
    recording = RecordingCommunicator(comm)
    with synced(fed(name), comm=recording):
        pass
    received = 0
    for call in recording.calls:
        share = comm.world_size - 1
        received += share * call.nbytes if call.op == "all_gather" else -(-2 * share * call.nbytes // comm.world_size)
    return Cost(len(recording.calls), received)


@pytest.mark.filterwarnings("ignore:.*hold the same data")
@pytest.mark.parametrize(("world_size", "large"), [(2, False), (4, True)])
@pytest.mark.parametrize("name", MADE)
def test_the_cost_is_what_is_then_seen(
    name: str, world_size: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By transcript; in a large world equal lists, whose hashes agree, are spared the frames that are reckoned with."""
    if large:
        monkeypatch.setattr(exchange, "LARGE_WORLD", 1)
        monkeypatch.setattr("distmetrics.metrics.plan.LARGE_WORLD", 1)
    said = explain(fed(name), world_size=world_size)
    seen = run(world_size, transcript, name)
    if large and said.growing:
        seen = [one + Cost(1, (world_size - 1) * exchange.frame_size(world_size)) for one in seen]
    tail = 16 * world_size  # runs are padded to 16 bytes
    assert [one.rounds for one in seen] == [said.cost.rounds] * world_size
    assert all(0 <= one.received - said.cost.received <= tail for one in seen)


@pytest.mark.parametrize("name", SAMPLES)
def test_any_metric_can_be_explained(name: str) -> None:
    """Before and after its first update; nothing is changed by it."""
    metric = SAMPLES[name].make()
    assert "collective" in str(explain(metric))
    metric.update(*batches(SAMPLES[name], 12, 0))
    assert explain(metric, world_size=3).cost.rounds == 1
    with lists_follow():
        assert explain(metric, world_size=3).cost.rounds == SAMPLES[name].rounds
