"""DL202."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from distlint.analysis import Analysis, Event, Value
from distlint.analysis.logs import Log, logs
from distlint.analysis.samplers import names_evaluation
from distlint.analysis.stages import Stages
from distlint.analysis.value import UNKNOWN_VALUE, items_of
from distlint.api import was_brought_together
from distlint.concrete import ConcreteTree, is_name, keyword
from distlint.model import SEVERAL_DEVICES, Change, Example, Repair, Report, Rule
from distlint.nodes import names_in
from distlint.tracing import data_of

_DEALERS = frozenset({"accelerator", "fabric"})
_LONGEST = 40  # characters of a value that a message shows


class EvalLogNotSynced(Rule):
    """A value of one rank's shard is logged in validation or test: the number is rank 0's, silently.

    Every rank evaluates its own share of the data. Without synchronisation, what the logger writes, and what
    checkpoints and early stopping follow, is the value of rank 0:

        rank 0   half of the validation set    loss 0.31   <- logged
        rank 1   the other half                loss 0.87
        all data                               loss 0.59

    Ranks that monitor such a value may also disagree about when to stop.

    How to fix: ``sync_dist=True`` for a loss, an accuracy or another mean over examples; a metric object
    (``torchmetrics``) that is logged itself for F1, AUC, precision and all that is no mean over examples; or
    ``self.all_gather`` and one computation. ``--fix`` adds ``sync_dist=True`` to losses that every batch logs.

    For review: whether several devices run the evaluation, the code seldom says. A trainer in the same file that is
    made for several does, and so does ``devices = "many"`` in the configuration; ``"one"`` takes the findings away.

    What ``fabric.log`` and ``accelerator.log`` are given under a key such as ``val_loss`` counts too, in a file in
    which Fabric or Accelerate deals out the data.

    The rule follows the data: from the parameters of ``validation_step``, ``test_step`` and their epoch ends,
    through variables, containers on ``self`` and methods of the class (with the stage that they are given), to
    the logged value.

    Silent: metric objects and what their ``compute()`` returns, gathered and reduced values, values that are no
    data of this rank (learning rate, epoch, parameters), logs of the training step, a flag that is not written out
    (``sync_dist=self.distributed``), a class with a ``log`` of its own, modules of ``distmetrics`` (their epoch
    values are those of all ranks), logs under a test of the rank (DL102) and with ``rank_zero_only=True`` (DL203);
    a value of each batch alone (``on_step=True, on_epoch=False``); a file whose trainers
    are told ``use_distributed_sampler=False`` while nothing in it is a sampler, so that every rank evaluates all data.

    When to ignore: the evaluation runs on one device, or every rank evaluates all data.
    """

    code, name, group = "DL202", "eval-log-not-synced", "wrong value"
    tokens = (
        (b".log",),
        (b"validation_", b"test_step", b"test_epoch", b"test_batch", b"test_end", b"setup_dataloaders", b".prepare"),
    )
    bad = (
        Example(
            """\
import torch.nn.functional as F
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("val_loss", loss, on_epoch=True, prog_bar=True)
        accuracy = (self(x).argmax(-1) == y).float().mean()
        self.log_dict({"accuracy": accuracy, "lr": self.lr}, sync_dist=False)

    def test_step(self, batch, batch_idx):
        losses = self.losses(batch)
        for name, value in losses.items():
            self.log(f"test_{name}", value)
""",
            {8: "rank 0's", 10: "rank 0's", 15: "rank 0's"},
        ),
        Example(
            """\
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.errors = []

    def validation_step(self, batch, batch_idx):
        self.errors.append((self(batch) - batch.y).abs().mean())

    def on_validation_epoch_end(self):
        self.log("error", torch.stack(self.errors).mean())
        self.errors.clear()

    def test_epoch_end(self, outputs):
        total = 0
        for output in outputs:
            total += output["reward"]
        self.log("reward", total / len(outputs))
""",
            {13: "rank 0's", 20: "rank 0's"},
        ),
        Example(
            """\
from lightning.pytorch import Callback, LightningModule

class Model(LightningModule):
    def _step(self, batch, stage):
        loss = self.loss(batch)
        if stage == "train":
            self.log("loss", loss)
            return loss
        self.log(f"{stage}_loss", loss)

    def training_step(self, batch, batch_idx):
        return self._step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self._step(batch, stage="val")

class Watch(Callback):
    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        pl_module.log("first", outputs["loss"])
""",
            {9: "rank 0's", 19: "rank 0's"},
        ),
    )
    good = (
        """\
from distmetrics.train import Module

class Base(Module):
    pass

class Model(Base):
    def validation_step(self, batch, batch_idx):
        self.log("loss", self.loss(batch))
""",
        """\
import torch
import torchmetrics
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(task="binary")
        self.metrics = torchmetrics.MetricCollection([self.accuracy])
        self.scale = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("val_loss", loss, sync_dist=True)
        self.log("val_loss_too", loss, sync_dist=self.trainer.world_size > 1)
        self.accuracy.update(self(batch), batch.y)
        self.log("accuracy", self.accuracy)
        metric = getattr(self, "accuracy")
        self.log("accuracy_again", metric)
        self.metrics.update(self(batch), batch.y)
        self.log_dict(self.metrics, on_epoch=True)
        self.log("scale", self.scale.exp())
        self.log("epoch", self.current_epoch)
        self.log("size", batch.y.shape[0])

    def on_validation_epoch_end(self):
        self.log("at_end", self.accuracy.compute())
        for name, value in self.metrics.compute().items():
            self.log(name, value)
""",
        """\
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.parts = []

    def validation_step(self, batch, batch_idx):
        self.parts.append(self.all_gather(self(batch)))
        value = self.loss(batch)
        dist.all_reduce(value)
        self.log("reduced", value / dist.get_world_size())
        self.log("helper", self._mean(batch))
        if self.trainer.is_global_zero:
            self.log("first", self.loss(batch), rank_zero_only=True)

    def _mean(self, batch):
        return self.all_gather(self.loss(batch)).mean()

    def on_validation_epoch_end(self):
        self.log("all", torch.cat(self.parts).mean())
        self.parts.clear()
        if not dist.is_initialized():
            self.log("alone", torch.cat(self.local).mean())
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge what validation and test log without synchronisation."""
        if analysis.evaluates_everything:
            return
        stages = Stages(analysis)
        for log in logs(analysis):
            value = next((each for _, each in log.entries() if each.is_share), None)
            if value is None or value.call is not None or not log.is_plain or _is_trace(log) or _is_said(log):
                continue
            if stages.is_evaluation(log):
                condition = None if analysis.devices == "many" else SEVERAL_DEVICES
                repair = _sync if _is_loss(value, log) and not log.event.guards else None
                yield Report(log.event.node, _message(log, value), data_of(analysis, value), condition, repair)
        if any(event.receiver.family in _DEALERS for event in analysis.events("loader", "wrap")):
            yield from _logged_by_dealers(analysis)


def _logged_by_dealers(analysis: Analysis) -> Iterator[Report]:
    """What Fabric or Accelerate, which dealt out the data, log of an evaluation under a key that says so."""
    condition = None if analysis.devices == "many" else SEVERAL_DEVICES
    for event in analysis.events("show"):
        is_log = isinstance(event.node, ast.Call) and getattr(event.node.func, "attr", "") in ("log", "log_dict")
        if not is_log or event.receiver.family not in _DEALERS:
            continue
        for key, value in _entries(event):
            if isinstance(key, str) and names_evaluation(key) and value.is_share:
                message = (
                    f"the logged {key!r} is made from this rank's share of the data, and was not reduced over ranks"
                )
                yield Report(event.node, message, data_of(analysis, value), condition)
                break


def _entries(event: Event) -> Iterator[tuple[object, Value]]:
    """Each logged value with its key: of a dict, or of a name and a value."""
    first = event.args[0] if event.args else UNKNOWN_VALUE
    yield from items_of(first).items()
    if first.constant is not None and len(event.args) > 1:
        yield first.constant, event.args[1]


def _is_trace(log: Log) -> bool:
    """A value of each batch and none of the epoch: no number of all the data, on one device either."""
    return log.flag("on_step") is True and "on_epoch" in log.event.options and log.flag("on_epoch") is False


def _is_said(log: Log) -> bool:
    """Whether the name of the value says that it is that of all ranks."""
    names = names_in(log.node) if log.node is not None else ()
    return any(map(was_brought_together, names))


def _is_loss(value: Value, log: Log) -> bool:
    """A mean over examples that every batch logs."""
    is_step = log.event.function.name in ("validation_step", "test_step") and not log.event.function.decorators
    return is_step and not log.many and value.measure is None and value.scale in ("mean", "mean?")


def _message(log: Log, value: Value) -> str:
    code = ast.unparse(log.node) if log.node is not None else "value"
    shown = code if len(code) <= _LONGEST else code[: _LONGEST - 3] + "..."
    if value.measure is not None:
        help_ = f"log a metric object, since {value.measure.what} cannot be averaged ({value.measure.reason})"
    else:
        help_ = "pass sync_dist=True if it is a mean over examples, else log a metric object or gather first"
    return f"the logged {shown} is made from this rank's share of the data: {help_}; the number is rank 0's"


def _sync(tree: ConcreteTree, call: cst.CSTNode) -> Repair | None:
    assert isinstance(call, cst.Call)
    given = keyword(call, "sync_dist")
    if is_name(given, "False") and given is not None:
        return Repair(True, (Change(given, "True"),))
    return Repair(True, (Change.adding(tree, call, "sync_dist=True"),))
