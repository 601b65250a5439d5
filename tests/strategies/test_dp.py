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
from distmetrics.train import Module, Trainer
from tests.strategies.common import step_of, train
from tests.train.models import Logistic, loader


def setup(module, devices, name="training_step"):
    strategy = resolve("dp", devices=devices, accelerator="cpu")
    entry = Entry(module)
    is_training = name == "training_step"
    return step_of(strategy.training_call(entry, []) if is_training else strategy.evaluation_call(entry), name)


class Plain(nn.Module):
    """No trainer is needed: this is what a step of the seam is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.norm = nn.BatchNorm1d(2)
        self.rnn = nn.LSTM(2, 2, batch_first=True)

    def training_step(self, batch, batch_idx):
        return {
            "loss": self.layer(self.norm(batch["x"])).mean(),
            "x": batch["x"],
            "thread": threading.current_thread().name,
        }

    def validation_step(self, batch, batch_idx, loader=0):
        assert not torch.is_grad_enabled()
        return batch["x"], loader


def test_a_batch_is_cut_like_torch_does():
    batch = {"x": torch.arange(7), "y": [torch.arange(7.0).reshape(7, 1)], "names": "abc", "scale": torch.tensor(2.0)}
    made, sizes = parts(batch, 3)
    assert sizes == [3, 3, 1]
    assert [part["x"].tolist() for part in made] == [chunk.tolist() for chunk in torch.arange(7).chunk(3)]
    assert all(part["names"] == "abc" and part["scale"] == 2 for part in made)
    assert parts({"x": torch.zeros(2, 1)}, 4)[1] == [1, 1]
    assert parts("no tensor", 4) == (["no tensor"], [1])
    with pytest.raises(InputError, match=r"differ: \[3, 7\]"):
        parts({"x": torch.zeros(7), "y": torch.zeros(3)}, 2)


def test_outputs_are_joined_like_torch_does():
    found = joined([{"a": torch.tensor(1.0), "b": torch.ones(2, 3), "c": "x", "d": 1, "e": None}] * 2)
    assert (found["a"].tolist(), found["b"].shape, found["c"], found["e"]) == ([1, 1], (4, 3), "x", None)
    assert joined([1, 2]) == [1, 2]
    with pytest.raises(InputError, match="returned different things"):
        joined([{"a": 1}, {"b": 1}])


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_loss_and_gradients_are_those_of_the_whole_batch(devices):
    module, reference = Plain(), Plain()
    reference.load_state_dict(module.state_dict())
    module.norm.eval()
    reference.norm.eval()
    batch = {"x": torch.randn(7, 2)}
    output = setup(module, devices)(batch, 0)
    expected = reference.training_step(batch, 0)
    torch.testing.assert_close(output["loss"], expected["loss"])
    assert torch.equal(output["x"], batch["x"])
    assert ("replica" in str(output["thread"])) == (devices > 1)
    output["loss"].backward()
    expected["loss"].backward()
    for name, parameter in reference.named_parameters():
        found = dict(module.named_parameters())[name].grad
        assert (found is None) == (parameter.grad is None)
        if found is not None:
            torch.testing.assert_close(found, parameter.grad)


def test_a_batch_of_one_sample_is_the_modules_own():
    module = Plain().eval()
    output = setup(module, 2)({"x": torch.ones(1, 2)}, 0)
    assert (output["loss"].shape, output["x"].shape) == ((), (1, 2))
    assert "replica" not in output["thread"]


def test_running_statistics_of_the_first_replica_live_on():
    module = Plain()
    x = torch.randn(8, 2)
    setup(module, 2)({"x": x}, 0)
    torch.testing.assert_close(module.norm.running_mean, 0.1 * x[:4].mean(0))
    assert module.norm.num_batches_tracked == 1


def test_evaluation_takes_over_the_modes_of_the_caller():
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        x, index = setup(Plain(), 2, "validation_step")({"x": torch.ones(4, 2)}, 0, 1)
    assert (x.shape, index) == ((4, 2), 1)


class Ends(Logistic):
    """As the guides have it: outputs are joined, metrics used on the main module."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        return {"loss": nn.functional.binary_cross_entropy_with_logits(logits, y), "logits": logits.detach()}

    def training_step_end(self, outputs):
        self.seen = {name: tuple(value.shape) for name, value in outputs.items()}
        return {"loss": outputs["loss"].mean()}


def test_a_step_end_of_ones_own_gets_every_replicas_output():
    output = setup(Ends(), 3)((torch.randn(6, 4), torch.ones(6)), 0)
    assert (output["loss"].shape, output["logits"].shape) == ((3,), (6,))


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
        self.log_dict({"a": scores.mean(), "b": scores.max()}, on_epoch=True)
        self.log("samples", len(y), reduce_fx="sum")
        self.log("highest", scores.max(), reduce_fx="max")
        self.log("lowest", scores.min(), reduce_fx="min", prog_bar=True)


@pytest.mark.parametrize("devices", [2, 3])
def test_what_replicas_log_is_what_one_would_have(devices):
    def found(strategy, count):
        trainer = Trainer(strategy=strategy, devices=count, accelerator="cpu")
        return trainer.validate(Collects(), loader(11, 4))[0]

    expected, values = found("single", 1), found("dp", devices)
    expected.pop("b")  # a mean of maxima is another number where the batches are others
    values.pop("b")
    assert values == pytest.approx(expected, rel=1e-6)
    assert values["samples"] == 11


class Broken(Logistic):
    def __init__(self, how):
        super().__init__()
        self.how = how
        self.calls = itertools.count()  # one for all replicas

    def training_step(self, batch, batch_idx):
        if self.how == "forward":
            self.log("accuracy", self.accuracy(self(batch[0]).sigmoid(), batch[1]))
        if self.how == "compute":
            self.accuracy.compute()
        if self.how == "gather":
            self.all_gather(batch[1])
        if self.how == "differs":
            self.log("x", 1.0, reduce_fx="sum" if next(self.calls) % 2 else "max")
        if self.how == "shape":
            self.log("x", batch[1])
        if self.how == "reduce":
            self.log("x", 1.0, reduce_fx="median")
        if self.how == "raise":
            raise ValueError("bad pixel")
        if self.how == "set":
            self.outputs = batch
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("forward", ConfigurationError, r"self\.accuracy\(\.\.\.\) in a step under strategy 'dp'(.|\n)*_step_end"),
        ("compute", ConfigurationError, r"self\.accuracy\.compute\(\) in a step"),
        ("gather", ConfigurationError, "all_gather in a step under strategy 'dp'"),
        ("differs", ConfigurationError, "log 'x' with different options"),
        ("shape", InputError, "'x' is a tensor of shape"),
        ("reduce", ConfigurationError, "'x'.*: reduce_fx must be one of"),
        ("raise", ValueError, "bad pixel"),
    ],
)
def test_what_a_replica_can_not_do(how, error, message):
    with pytest.raises(error, match=message):
        train("dp", 2, module=Broken(how), epochs=1)


def test_an_attribute_that_is_lost_is_named(monkeypatch):
    monkeypatch.setattr(dp, "_warned", set())
    with pytest.warns(UserWarning, match=r"has set self\.outputs on a replica"):
        train("dp", 2, module=Broken("set"), epochs=1)


class NoMetrics(Module):
    """A metric that is no module, as torcheval's are."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.counter = Counter()

    def validation_step(self, batch, batch_idx):
        self.counter.update(batch)


class Counter:
    def __init__(self):
        self.seen = []

    def update(self, batch):
        self.seen.append(batch.tolist())

    def compute(self):
        return torch.tensor(0)

    def reset(self):
        self.seen.clear()


def test_a_metric_that_is_no_module_is_updated_in_order():
    module = NoMetrics()
    setup(module, 3, "validation_step")(torch.arange(6), 0)
    assert module.counter.seen == [[0, 1], [2, 3], [4, 5]]


def test_manual_optimization_is_refused():
    module = Logistic()
    module.automatic_optimization = False
    trainer = Trainer(strategy="dp", devices=2, accelerator="cpu", max_epochs=1)
    with pytest.raises(ConfigurationError, match="Logistic does its own optimization, and strategy='dp'"):
        trainer.fit(module, loader(4))


@pytest.mark.parametrize("kind", [DP, DDP2, FSDP, FSDPSpawn, DeepSpeed])
def test_strategies_that_split_what_a_step_would_step(kind):
    assert not kind.manual


def test_recurrent_layers_keep_their_weights():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(2, 3, batch_first=True)

        def training_step(self, batch, batch_idx):
            return self.rnn(batch)[0].mean() + sum(p.pow(2).sum() for p in self.parameters())

    module, batch = Recurrent(), torch.randn(4, 5, 2)
    loss = setup(module, 2)(batch, 0)
    torch.testing.assert_close(loss, module.training_step(batch, 0))
    loss.backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
