"""Replicas of one process: what they share, what is joined, what they must not lose."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryF1Score

from distmetrics.errors import ConfigurationError, InputError
from distmetrics.strategies import DDP2, DP, FSDP, DeepSpeed, FSDPSpawn, dp
from distmetrics.strategies.base import Entry
from distmetrics.strategies.dp import joined, parts
from distmetrics.strategies.registry import resolve
from distmetrics.train import Trainer
from tests.run.models import Logistic, loader
from tests.strategies.common import step_of, train


def setup(module, devices, name="training_step"):
    strategy = resolve("dp", devices=devices, accelerator="cpu")
    entry = Entry(module)
    if name == "training_step":
        return step_of(strategy.training_call(entry, []), name)
    return step_of(strategy.evaluation_call(entry), name)


class Counter:
    """A metric that is no module, as torcheval's are."""

    def __init__(self):
        self.seen = []

    def update(self, batch):
        self.seen.append(batch.tolist())

    def compute(self):
        return torch.tensor(0)

    def reset(self):
        self.seen.clear()


class Plain(nn.Module):
    """No trainer is needed: this is what a step of the seam is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.norm = nn.BatchNorm1d(2)
        self.rnn = nn.LSTM(2, 2, batch_first=True)
        self.counter = Counter()

    def training_step(self, batch, batch_idx):
        seen = self.rnn(self.norm(batch["x"])[:, None])[0][:, 0]
        thread = threading.current_thread().name
        return {"loss": self.layer(seen).mean(), "x": batch["x"], "thread": thread}

    def validation_step(self, batch, batch_idx, loader=0):
        assert not torch.is_grad_enabled()
        self.counter.update(batch)
        return batch, loader


def test_a_batch_is_cut_and_outputs_are_joined_like_torch_does():
    columns = {"x": torch.arange(7), "y": [torch.arange(7.0).reshape(7, 1)]}
    made, sizes = parts({**columns, "names": "abc", "scale": torch.tensor(2.0)}, 3)
    assert sizes == [3, 3, 1]
    chunks = [chunk.tolist() for chunk in torch.arange(7).chunk(3)]
    assert [part["x"].tolist() for part in made] == chunks
    assert all(part["names"] == "abc" and part["scale"] == 2 for part in made)
    assert parts({"x": torch.zeros(2, 1)}, 4)[1] == [1, 1]
    assert parts("no tensor", 4) == (["no tensor"], [1])
    with pytest.raises(InputError, match=r"differ: \[3, 7\]"):
        parts({"x": torch.zeros(7), "y": torch.zeros(3)}, 2)
    output = {"a": torch.tensor(1.0), "b": torch.ones(2, 3), "c": "x", "d": 1, "e": None}
    found = joined([output] * 2)
    assert (found["a"].tolist(), found["b"].shape, found["c"]) == ([1, 1], (4, 3), "x")
    assert (found["e"], joined([1, 2])) == (None, [1, 2])
    with pytest.raises(InputError, match="returned different things"):
        joined([{"a": 1}, {"b": 1}])


@pytest.mark.parametrize(("devices", "rows"), [(1, 7), (2, 7), (3, 7), (2, 1)])
def test_loss_and_gradients_are_those_of_the_whole_batch(devices, rows):
    module, reference = Plain(), Plain()
    reference.load_state_dict(module.state_dict())
    module.norm.eval()
    reference.norm.eval()
    batch = {"x": torch.randn(rows, 2)}
    output, expected = setup(module, devices)(batch, 0), reference.training_step(batch, 0)
    torch.testing.assert_close(output["loss"], expected["loss"])
    assert torch.equal(output["x"], batch["x"])
    assert ("replica" in str(output["thread"])) == (devices > 1 < rows)
    output["loss"].backward()
    expected["loss"].backward()
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    wanted = {name: parameter.grad for name, parameter in reference.named_parameters()}
    torch.testing.assert_close(found, wanted)


def test_running_statistics_of_the_first_replica_live_on_and_modes_are_the_callers():
    module, x = Plain(), torch.randn(8, 2)
    setup(module, 2)({"x": x}, 0)
    torch.testing.assert_close(module.norm.running_mean, 0.1 * x[:4].mean(0))
    assert module.norm.num_batches_tracked == 1
    with torch.no_grad():
        x, index = setup(module, 3, "validation_step")(torch.arange(6), 0, 1)
    assert (x.tolist(), index) == ([*range(6)], 1)
    assert module.counter.seen == [[0, 1], [2, 3], [4, 5]]  # in order


class Collects(Logistic):
    """Logs by every road."""

    def __init__(self):
        super().__init__()
        self.collection = MetricCollection([BinaryAccuracy(), BinaryF1Score()])

    def validation_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x).sigmoid()
        self.collection.update(scores, y.int())
        self.log_dict(self.collection)
        self.log_dict({"a": scores.mean()}, on_epoch=True)
        self.log("samples", len(y), reduce_fx="sum")
        self.log("highest", scores.max(), reduce_fx="max")
        self.log("lowest", scores.min(), reduce_fx="min", prog_bar=True)


def test_what_replicas_log_is_what_one_would_have():
    def found(strategy, count):
        trainer = Trainer(strategy=strategy, devices=count, accelerator="cpu")
        return trainer.validate(Collects(), loader(11, 4))[0]

    values = found("dp", 3)
    assert values == pytest.approx(found("single", 1), rel=1e-6)
    assert values["samples"] == 11


CALLS = itertools.count()  # one for all replicas
IN_A_STEP = r"in a step under strategy 'dp'(.|\n)*_step_end"


def fail(module, batch):
    raise ValueError("bad pixel")


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda m, batch: m.accuracy.compute(), ConfigurationError, rf"self\.accuracy\.compute\(\) {IN_A_STEP}"),
        (lambda m, batch: m.all_gather(batch[1]), ConfigurationError, f"all_gather {IN_A_STEP}"),
        (
            lambda m, batch: m.log("x", 1.0, reduce_fx=["sum", "max"][next(CALLS) % 2]),
            ConfigurationError,
            "log 'x' with d",
        ),
        (lambda m, batch: m.log("x", batch[1]), InputError, "'x' is a tensor of shape"),
        (lambda m, batch: m.log("x", 1.0, reduce_fx="median"), ConfigurationError, "'x'.*: reduce_fx must be one"),
        (fail, ValueError, "bad pixel"),
        (lambda m, batch: setattr(m, "outputs", batch), UserWarning, r"has set self\.outputs on a replica"),
    ],
)
def test_what_a_replica_can_not_do(act, error, message, monkeypatch):
    class Broken(Logistic):
        def training_step(self, batch, batch_idx):
            act(self, batch)
            return super().training_step(batch, batch_idx)

    monkeypatch.setattr(dp, "_warned", set())
    with pytest.raises(error, match=message):
        train("dp", 2, module=Broken(), epochs=1)


def test_strategies_that_split_what_a_step_would_step():
    assert not any(kind.manual for kind in (DP, DDP2, FSDP, FSDPSpawn, DeepSpeed))
