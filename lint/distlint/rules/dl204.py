"""DL204."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.metric_objects import forwarded, metric_object
from distlint.facts.programs import Programs
from distlint.facts.tree import is_name, keyword, tail, text_of, walk
from distlint.facts.values import Values
from distlint.model import Change, Example, Hit, Repair, Rule

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts
    from distlint.facts.evaluation import Log

# Metrics whose compute() is no single number: such an object cannot be logged itself.
_MANY = (
    "BERTScore",
    "ClasswiseWrapper",
    "ConfusionMatrix",
    "Curve",
    "InfoLM",
    "MeanAveragePrecision",
    "PanopticQuality",
    "ROC",
    "ROUGEScore",
    "SQuAD",
    "StatScores",
)


class MetricForwardLogged(Rule):
    """The value of calling a metric object is logged in validation or test, instead of the object.

    ``self.f1(x, y)`` returns the metric of this batch, on this rank. What is logged is then the mean of rank
    0's batch values, weighted by batch size; the object, which counts over all batches and ranks, is never asked:

        rank 0   batches   1.00  0.50       logged      0.75
        rank 1   batches   0.00  0.20
        all data, from the counts           F1          0.38

    How to fix: update the object and log the object itself. Lightning computes it at the end of the epoch,
    over all batches and all ranks, and resets it. ``--fix`` does so where the metric belongs to this step alone.

    Silent: metric objects that are logged, ``compute()``, losses and other callables, the training step (where
    the value of the batch is wanted), ``dist_sync_on_step=True``, any ``sync_dist`` (DL201 judges that); where every
    trainer is for one device (``devices=1``, see DL202), metrics for which the mean over batches is right (accuracy);
    a log that is kept nowhere (``on_step=False, on_epoch=False``). Where the class of the metric cannot be seen, DL202
    reports the value.

    When to ignore: one device that only the command line tells of, and such a metric.
    """

    code, name, group = "DL204", "metric-forward-logged", "wrong value"
    tokens = (
        (b".log",),
        (b"validation_", b"test_step", b"test_epoch", b"test_batch", b"test_end"),
    )
    bad = (
        Example(
            """\
import torchmetrics
from torchmetrics import Accuracy, MetricCollection
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.accuracy = Accuracy(task="binary")
        self.f1 = torchmetrics.F1Score(task="binary")
        self.metrics = MetricCollection([Accuracy(task="binary")])

    def validation_step(self, batch, batch_idx):
        self.log("f1", self.f1(self(batch), batch.y), on_epoch=True)
        accuracy = self.accuracy(self(batch), batch.y)
        self.log("accuracy", accuracy)
        values = self.metrics(self(batch), batch.y)
        self.log_dict(values)
""",
            {13: "self.f1", 15: "self.accuracy", 17: "self.metrics"},
        ),
        Example(
            """\
import torch
from torchmetrics import Metric, AUROC
from lightning.pytorch import LightningModule

class Hits(Metric):
    pass

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.hits = Hits()
        self.scores = torch.nn.ModuleDict({"auc": AUROC(task="binary")})

    def shared(self, batch, stage):
        self.log(f"{stage}/hits", self.hits(self(batch), batch.y))

    def test_step(self, batch, batch_idx):
        self.shared(batch, "test")
        for name, metric in self.scores.items():
            self.log(name, metric(self(batch), batch.y))
        self.log_dict({"auc": self.scores["auc"](self(batch), batch.y)})
""",
            {15: "self.hits", 20: "metric", 21: "self.scores"},
        ),
    )
    good = (
        """\
from torchmetrics import Accuracy, MetricCollection
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.train_accuracy = Accuracy(task="binary")
        self.accuracy = Accuracy(task="binary")
        self.stepwise = Accuracy(task="binary", dist_sync_on_step=True)
        self.metrics = MetricCollection([Accuracy(task="binary")])
        self.loss = MyLoss()

    def training_step(self, batch, batch_idx):
        self.log("train_accuracy", self.train_accuracy(self(batch), batch.y))
        return self.loss(self(batch), batch.y)

    def validation_step(self, batch, batch_idx):
        self.accuracy(self(batch), batch.y)
        self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
        self.log("stepwise", self.stepwise(self(batch), batch.y))
        self.metrics.update(self(batch), batch.y)
        self.log_dict(self.metrics)
        for name, metric in self.metrics.items():
            self.log(name, metric)
        self.log("loss", self.loss(self(batch), batch.y), sync_dist=True)
        self.log("mean", self.accuracy(self(batch), batch.y), sync_dist=True)

    def on_test_epoch_end(self):
        self.log("at_end", self.accuracy.compute())
""",
    )

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Judge what validation and test log without synchronisation."""
        programs, values = Programs(facts), Values(facts)
        for log in facts.evaluation_logs:
            if log.flag("sync_dist") is not False or log.flag("rank_zero_only") is not False:
                continue
            if all(is_name(keyword(log.call, name), "False") for name in ("on_step", "on_epoch")):
                continue  # nothing is kept of it
            for value in log.values(facts):
                call = forwarded(facts, value)
                if call is not None and facts.shares.source(value) is not None:
                    if values.judge(value) is not None or not programs.is_for_one_device:
                        yield _hit(facts, log, value, call)
                    break


def _hit(facts: ModuleFacts, log: Log, value: cst.BaseExpression, call: cst.Call) -> Hit:
    metric = facts.code(call.func)
    method = facts.method_of(log.call)
    is_at_end = method is not None and method.name.value.endswith(("_epoch_end", "_validation_end", "_test_end"))
    seen = "the batches" if is_at_end else "one batch"
    message = (
        f"the logged value is {metric} of {seen} on one rank: update {metric} and log the object itself, "
        "which counts over all batches and ranks"
    )
    return Hit(log.call, message, ((call, "value", facts.code(call)),), _repair(facts, log, value, call))


def _repair(facts: ModuleFacts, log: Log, value: cst.BaseExpression, call: cst.Call) -> Repair | None:
    """Log the object; only where nothing else uses it, since logging resets it."""
    if value is not log.value or not _is_alone(facts, log, call) or not _is_one_number(facts, call):
        return None
    metric = facts.code(call.func)
    if value is not call:
        named = isinstance(value, cst.Name)
        return Repair(True, (Change(value, metric),)) if named else None
    statement = facts.statement(log.call)
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    ways = metric if log.flag("on_step") is not False else f"{metric}.update"
    text = f"{ways}({', '.join(facts.code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in call.args)})"
    return Repair(True, (Change(statement, text, "before"), Change(value, metric)))


def _is_alone(facts: ModuleFacts, log: Log, call: cst.Call) -> bool:
    """Whether this step alone touches the metric."""
    function, owner, attribute = facts.function_of(log.call), facts.owner(call), facts.self_attribute(call.func)
    if function is None or owner is None or attribute is None:
        return False
    if function.name.value not in ("validation_step", "test_step") or not facts.classes[owner.node].known:
        return False
    for node in walk(owner.node.body):
        if isinstance(node, cst.Attribute) and facts.self_attribute(node) == attribute:
            parent = facts.parents[node]
            is_made = isinstance(parent, cst.AssignTarget | cst.AnnAssign)
            if not is_made and not (parent is call or facts.function_of(node) is None):
                return False
    return True


def _is_one_number(facts: ModuleFacts, call: cst.Call) -> bool:
    made = metric_object(facts, call.func)
    if made is None or tail(made.func) in ("MetricCollection", "clone"):
        return made is not None and tail(made.func) == "MetricCollection"
    average = keyword(made, "average")
    is_many = (tail(made.func) or "").endswith(_MANY) or text_of(average) == "none" or is_name(average, "None")
    return not is_many
