"""DL211."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.metric_objects import metric_object
from distlint.facts.tree import argument, keyword, tail, text_of, walk
from distlint.model import Example, Hit, Rule

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts

_STEPS = ("training_step", "validation_step", "test_step")
_RUNS = frozenset({"fit", "validate", "test"})


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

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Judge the steps of every class that dp runs."""
        for node, methods in _replicated(facts).items():
            for name in methods:
                method = facts.classes[node].method(name)
                for call in walk(method.body) if method is not None else ():
                    if isinstance(call, cst.Call) and _updates(facts, call):
                        message = (
                            "under dp this metric is updated on a replica that is thrown away after the batch: update "
                            "it in the step_end hook, or use ddp"
                        )
                        yield Hit(call, message)


def _updates(facts: ModuleFacts, call: cst.Call) -> bool:
    target = call.func
    if isinstance(target, cst.Attribute) and target.attr.value in ("update", "forward"):
        target = target.value
    return metric_object(facts, target) is not None


def _replicated(facts: ModuleFacts) -> dict[cst.ClassDef, tuple[str, ...]]:
    """Classes whose instances dp runs, with the methods that run on replicas."""
    found: dict[cst.ClassDef, tuple[str, ...]] = {}
    for call in facts.nodes(cst.Call):
        if (facts.resolve(call.func) or "") in ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel"):
            made = _class_of(facts, argument(call, 0, "module"))
            if made is not None:
                found[made] = ("forward",)
        elif tail(call.func) in _RUNS and isinstance(call.func, cst.Attribute) and _is_dp(facts, call.func.value):
            made = _class_of(facts, argument(call, 0, "model"))
            if made is not None:
                found[made] = _STEPS
    return found


def _is_dp(facts: ModuleFacts, trainer: cst.BaseExpression) -> bool:
    made = _made(facts, trainer)
    if made is None or tail(made.func) != "Trainer":
        return False
    given = (keyword(made, name) for name in ("strategy", "accelerator", "distributed_backend"))
    return any(text_of(value) == "dp" for value in given)


def _class_of(facts: ModuleFacts, value: cst.BaseExpression | None) -> cst.ClassDef | None:
    made = None if value is None else _made(facts, value)
    if made is None or not isinstance(made.func, cst.Name):
        return None
    nodes = [binding.node for binding in facts.scope(made).lookup(made.func.value)]
    return nodes[0] if len(nodes) == 1 and isinstance(nodes[0], cst.ClassDef) else None


def _made(facts: ModuleFacts, value: cst.BaseExpression) -> cst.Call | None:
    """The call that a value comes from."""
    if isinstance(value, cst.Name):
        found = reaching(facts, value)
        first = found[0].value if len(found) == 1 and not found[0].steps else None
        return first if isinstance(first, cst.Call) else None
    return value if isinstance(value, cst.Call) else None
