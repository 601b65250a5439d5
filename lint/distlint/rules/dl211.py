"""DL211."""

from __future__ import annotations

from collections.abc import Iterator

from distlint.analysis import Analysis, Value
from distlint.analysis.arguments import constants_of
from distlint.model import Example, Report, Rule
from distlint.syntax import ClassNode, FunctionNode

_STEPS = ("training_step", "validation_step", "test_step")
_RUNS = frozenset({"fit", "validate", "test"})
_STRATEGIES = ("strategy", "accelerator", "distributed_backend")
_MESSAGE = (
    "under dp this metric is updated on a replica that is thrown away after the batch: update it in the step_end hook, "
    "or use ddp"
)


class MetricUpdatedOnReplica(Rule):
    """A metric is updated in a step under data parallel (dp): its counts go to a replica that is thrown away.

    ``dp`` copies the module to every device for each batch, runs the step on the copies, and drops them. What a
    copy wrote into its metric is lost, so the metric of the module that is kept has seen nothing:

        UserWarning: The ``compute`` method of metric Accuracy was called before the ``update`` method

    How to fix: return predictions and labels from the step and update the metric in ``validation_step_end`` (or
    ``training_step_end``), which runs on the module itself; or use ``ddp``.

    The rule needs to see it in one file: the trainer with ``dp`` (or ``torch.nn.DataParallel`` around the model)
    and the class that it runs.

    Silent: other strategies, models made elsewhere, updates in ``*_step_end``.

    When to ignore: never, the counts are lost.
    """

    code, name, group = "DL211", "metric-updated-on-replica", "wrong value"
    tokens = ((b'"dp"', b"'dp'", b"DataParallel"), (b"torchmetrics", b"pytorch_lightning"))
    bad = (
        Example(
            """\
from lightning.pytorch import LightningModule, Trainer
from torchmetrics import Accuracy

class Parallel(LightningModule):
    def __init__(self):
        super().__init__()
        self.accuracy = Accuracy(task="binary")

    def validation_step(self, batch, batch_idx):
        self.accuracy.update(self(batch), batch.y)
        return self.accuracy(self(batch), batch.y)

parallel = Parallel()
dp_trainer = Trainer(gpus=2, accelerator="dp")
dp_trainer.fit(parallel)
""",
            {10: "replica", 11: "replica"},
        ),
        Example(
            """\
import torch
from torchmetrics import Accuracy

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.accuracy = Accuracy(task="binary")

    def forward(self, x, y):
        self.accuracy(x, y)
        return x

model = torch.nn.DataParallel(Model())
""",
            {10: "replica"},
        ),
    )
    good = (
        """\
from lightning.pytorch import LightningModule, Trainer
from torchmetrics import Accuracy

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.accuracy = Accuracy(task="binary")

    def validation_step(self, batch, batch_idx):
        self.accuracy.update(self(batch), batch.y)

class Split(Model):
    def validation_step(self, batch, batch_idx):
        return self(batch), batch.y

    def validation_step_end(self, outputs):
        self.accuracy.update(*outputs)

model = Split()
trainer = Trainer(gpus=2, strategy="dp")
trainer.fit(model)
model = Model()
trainer = Trainer(gpus=2, strategy="ddp")
trainer.fit(model)
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge the steps of every class that dp runs."""
        replicated = set(_replicated(analysis))
        for event in analysis.events("forward", "update"):
            if event.receiver.family == "metric" and event.function in replicated:
                yield Report(event.node, _MESSAGE)


def _replicated(analysis: Analysis) -> Iterator[FunctionNode]:
    """The methods that run on replicas, of classes whose objects dp runs."""
    for event in analysis.events("replicate", "collective"):
        model = event.argument(0, "module" if event.kind == "replicate" else "model")
        if model is None or not isinstance(model.target, ClassNode):
            continue
        if event.kind == "replicate":
            names: tuple[str, ...] = ("forward",)
        else:
            names = _STEPS if event.label in _RUNS and _is_dp(event.receiver) else ()
        for name in names:
            found = (each.methods[name] for each in analysis.index.lineage(model.target) if name in each.methods)
            yield from list(found)[:1]


def _is_dp(trainer: Value) -> bool:
    made = constants_of(trainer.call)
    return any(made.get(name) == "dp" for name in _STRATEGIES)
