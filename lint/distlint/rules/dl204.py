"""DL204."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

import libcst as cst

from distlint.analysis import Analysis, Event, Value
from distlint.analysis.arguments import constants_of
from distlint.analysis.logs import Log, logs
from distlint.analysis.stages import Stages
from distlint.concrete import ConcreteTree, argument
from distlint.model import SEVERAL_DEVICES, Change, Example, Repair, Report, Rule
from distlint.nodes import within

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
    the value of the batch is wanted), ``dist_sync_on_step=True``, any ``sync_dist`` (DL201 judges that); a log
    that is kept nowhere (``on_step=False, on_epoch=False``). Where the class of the metric cannot be seen, DL202
    reports the value. For review, as in DL202: metrics for which the mean over batches is right (accuracy).

    When to ignore: one device, and such a metric.
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

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge what validation and test log without synchronisation."""
        stages, index = Stages(analysis), analysis.index
        for log in logs(analysis):
            value = next((each for _, each in log.entries() if each.call is not None and each.is_share), None)
            if value is None or value.call is None or not (log.is_plain and stages.is_evaluation(log)):
                continue
            is_wrong_alone = value.measure is not None  # the mean over batches is wrong on one device, too
            metric = index.text_of(value.call.func)
            seen = "the batches" if log.event.function.name.endswith("end") else "one batch"
            message = (
                f"the logged value is {metric} of {seen} on one rank: update {metric} and log the object itself, "
                "which counts over all batches and ranks"
            )
            condition = None if is_wrong_alone or analysis.devices == "many" else SEVERAL_DEVICES
            trace = ((index.path, value.call.lineno, "value", index.text_of(value.call)),)
            repair = partial(_repair, metric, log) if _is_mendable(analysis, log, value) else None
            yield Report(log.event.node, message, trace, condition, repair)


def _is_mendable(analysis: Analysis, log: Log, value: Value) -> bool:
    """Whether this step alone touches the metric: logging the object resets it."""
    owner, called = log.event.function.owner, value.call
    if owner is None or called is None or not isinstance(called.func, ast.Attribute):
        return False
    made = next((each for each in analysis.events("forward") if each.node is called), None)
    uses = [
        node
        for node in within(owner.node, ast.Attribute)
        if node.attr == called.func.attr and isinstance(node.ctx, ast.Load)
    ]
    is_step = log.event.function.name in ("validation_step", "test_step")
    return is_step and uses == [called.func] and value is log.subject and made is not None and _is_one_number(made)


def _is_one_number(made: Event) -> bool:
    """Whether a metric of the library is a single number, or a collection of such."""
    name, options = made.receiver.name, constants_of(made.receiver.call)
    average = options.get("average", "")
    return bool(name) and not name.endswith(_MANY) and average != "none" and average is not None


def _repair(metric: str, log: Log, tree: ConcreteTree, call: cst.CSTNode) -> Repair | None:
    """Log the object; what was called in the same place is updated before."""
    assert isinstance(call, cst.Call)
    value = argument(call, 0, "dictionary") if log.many else argument(call, 1, "value")
    if isinstance(value, cst.Name):
        return Repair(True, (Change(value, metric),))
    statement = tree.statement(call)
    if not isinstance(value, cst.Call) or tree.code(value.func) != metric:
        return None
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    way = metric if log.flag("on_step") is not False else f"{metric}.update"
    given = ", ".join(tree.code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in value.args)
    return Repair(True, (Change(statement, f"{way}({given})", "before"), Change(value, metric)))
