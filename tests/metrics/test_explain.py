"""What is said of a sync beforehand is what it then does: collectives and bytes, in small worlds and large."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAUROC, MulticlassConfusionMatrix, MulticlassF1Score
from torchmetrics.regression import PearsonCorrCoef

from distmetrics import InputError, StateError, explain, synced
from distmetrics.collectives import exchange
from distmetrics.metrics.plan import Cost
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator, counted_torch_calls
from tests.metrics.samples import SAMPLES, batches, lists_follow

pytestmark = pytest.mark.filterwarnings("ignore:Metric `.*` will save all targets")
MADE = {
    "counts": lambda: MulticlassF1Score(10),
    "large": lambda: MulticlassConfusionMatrix(100),
    "lists": lambda: MulticlassAUROC(10),
    "all": lambda: MetricCollection([MulticlassF1Score(10), MulticlassConfusionMatrix(10), MulticlassAUROC(10)]),
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
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("world_size", [2, 4])
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


def own_calls(comm: Any) -> dict[str, int]:
    counts = {}
    for name in ("counts", "large", "stack"):
        metric = fed(name)
        with counted_torch_calls() as calls:
            metric.sync()
        counts[name] = calls.total()
    return counts


@pytest.mark.gloo
def test_the_other_way_is_told_as_it_is() -> None:
    """The collectives that torchmetrics' own sync is said to take, counted."""
    for seen in run(2, own_calls, backend="gloo"):
        assert seen == {name: explain(fed(name), world_size=2).one_by_one.rounds for name in seen}


def test_before_anything_is_known() -> None:
    """A metric that has seen nothing is explained as if it had been updated; default world."""
    text = str(explain(MADE["lists"]()))
    assert "over 2 ranks" in text
    assert "what grows with the data is shown as it is now: preds, target" in text


def test_an_epoch_of_a_thousand_ranks_is_planned_here() -> None:
    """Reduced, the bytes hardly depend on the world; gathered, they would be gigabytes."""
    metric = MulticlassConfusionMatrix(1000)
    few, many = (explain(metric, world_size=world_size) for world_size in (4, 4096))
    assert many.cost.received < 2 * few.cost.received < 2**25
    assert many.one_by_one.received > 2**34


@pytest.mark.parametrize("name", SAMPLES)
def test_any_metric_can_be_explained(name: str) -> None:
    """Before and after its first update; nothing is changed by it."""
    metric = SAMPLES[name].make()
    assert "collective" in str(explain(metric))
    metric.update(*batches(SAMPLES[name], 12, 0))
    assert explain(metric, world_size=3).cost.rounds == 1
    with lists_follow():
        assert explain(metric, world_size=3).cost.rounds == SAMPLES[name].rounds


def test_bad_input() -> None:
    """Clear errors, and no collective."""
    with pytest.raises(StateError, match="a list holds no metric"):
        explain([1, 2])
    with pytest.raises(InputError, match="a world of 1 has nothing to sync"):
        explain(MADE["counts"](), world_size=1)
