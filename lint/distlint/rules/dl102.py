"""DL102."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from distlint.analysis import Analysis, Step
from distlint.analysis.formula import LOCAL_ZERO, RANK, ZERO
from distlint.analysis.logs import key_of, may_log, only_logs
from distlint.analysis.sequences import Divergence, divergences
from distlint.api.tokens import RANK_TOKENS
from distlint.concrete import ConcreteTree, is_name, keyword
from distlint.model import Change, Condition, Example, Repair, Report, Rule
from distlint.tracing import guard_of, named, way_to, who

_MONITORED = Condition("data", "which matters if a callback monitors it")


class LogUnderRankGuard(Rule):
    """``self.log`` that only some ranks reach, without ``rank_zero_only=True``: Lightning takes it for all ranks'.

    Lightning keeps the logged values of each rank in a collection of its own and reads it at the end of the
    epoch as if every rank had the same entries. Where one rank alone has an entry, what follows differs:

        sync_dist=True, or a metric object   rank 0 reduces the value … and waits for the others, for ever
        monitor="score" in a callback        rank 0 saves or stops, the others fail: no metric named "score"

    How to fix: say so, ``self.log(..., rank_zero_only=True)``; Lightning then asks no other rank. (Callbacks
    cannot monitor such a value.) Or compute the value on every rank and log it outside of the branch.

    For review: a plain value that is not reduced, which is wrong only where a callback of another rank asks for it.

    Silent: ``sync_dist=False, on_epoch=False`` that is written out; a log in both arms of the branch, plain values in
    a hook that is ``@rank_zero_only`` as a whole, loggers and trackers (``self.logger.log``, ``wandb.log``), ``log``
    methods of classes that are no LightningModule, calls with ``rank_zero_only`` or ``**options``, modules of
    ``distmetrics`` (an epoch's values are combined by name).

    When to ignore: an older Lightning without ``rank_zero_only``, a plain number, and no callback that reads it.
    """

    code, name, group = "DL102", "log-under-rank-guard", "divergence"
    tokens = (RANK_TOKENS, (b"log",))
    evidence = staticmethod(may_log)
    bad = (
        Example(
            """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def on_validation_epoch_end(self):
        scores = self.all_gather(self.scores)
        if self.trainer.is_global_zero:
            self.log("score", scores.mean())
            self.log("spread", scores.std(), sync_dist=True)
            self.log_dict({"low": scores.min(), "high": scores.max()}, rank_zero_only=False)
""",
            {7: "only rank 0 logs this", 8: "sync_dist=True waits", 9: "only rank 0 logs this"},
        ),
        Example(
            """\
import pytorch_lightning as pl

class Model(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self(batch)
        if self.global_rank != 0:
            return loss
        self.log(
            "loss",
            loss.detach(),  # of this rank
        )
        return loss
""",
            {8: "only rank 0 logs this"},
        ),
        Example(
            """\
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities import rank_zero_only

class Report(Callback):
    @rank_zero_only
    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.log("epoch", trainer.current_epoch, sync_dist=True)

class Model(LightningModule):
    def report(self):
        self.log("scale", self.scale)

    def on_train_epoch_end(self):
        if self.trainer.global_rank == 0:
            self.report()

    def on_test_epoch_end(self):
        if self.local_rank > 0:
            self.log("rest", self.rest)
""",
            {7: "sync_dist=True waits", 15: "inside report", 19: "local rank 0 never logs this"},
        ),
    )
    good = (
        """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def on_validation_epoch_end(self):
        scores = self.all_gather(self.scores)
        self.log("score", scores.mean())
        if self.trainer.is_global_zero:
            self.log("spread", scores.std(), rank_zero_only=True)
            self.log("low", scores.min(), **self.options)
            self.logger.log_metrics({"high": scores.max()})
            self.logger.experiment.log({"high": scores.max()}, 1)
            print(self.log)
        if self.trainer.world_size > 1:
            self.log("mean", scores.mean())
""",
        """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:
            self.log("scale", self.scale)
        else:
            self.log("scale", self.scale)
""",
        """\
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_only
from torchmetrics import MeanMetric

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.metric = MeanMetric(sync_on_compute=False)

    @rank_zero_only
    def validation_step(self, batch, batch_idx):
        self.metric.update(self(batch))
        self.log("metric", self.metric.compute())
""",
        """\
from transformers import Trainer
import wandb

class OwnTrainer:
    def log(self, name, value):
        self.writer.add_scalar(name, value)

    def training_step(self, batch):
        if self.rank == 0:
            self.log("loss", batch.mean())
            wandb.log("loss", batch.mean())

class Theirs(Trainer):
    def training_step(self, model, inputs):
        if self.is_world_process_zero():
            self.log({"loss": 0.0})
            self.log("loss", 0.0)
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Compare what every kind of rank logs in each function."""
        decorators = {id(each) for function in analysis.index.all_functions for each in function.decorators}
        for report in analysis.reports.values():
            body = only_logs(report.body, key_of)
            for found in divergences(body, lambda atom: atom.varies == RANK, lambda step: True):
                guard = found.visit.guard
                is_hook = guard is not None and id(guard.node) in decorators
                is_plain = not _is_synced(found.visit.step)
                if found.instead is None and not (is_plain and (is_hook or _is_denied(found.visit.step))):
                    yield from _report(found, _MONITORED if is_plain else None)


def _is_synced(step: Step) -> bool:
    return step.effect.kind == "log"


def _is_denied(step: Step) -> bool:
    """Whether the call itself says that its value is no other rank's, and none of an epoch that may be monitored."""
    options = step.event.options if step.event is not None else {}
    return all(name in options and options[name].constant is False for name in ("sync_dist", "on_epoch"))


def _report(found: Divergence, condition: Condition | None) -> Iterator[Report]:
    _, event = named(found.visit)
    if event is None:
        return
    is_direct = event is found.visit.step.event
    what = "this" if is_direct else f"this (inside {event.label})"
    ranks = who(found.atom)
    message = f"only {ranks} logs {what}" if found.reached else f"{ranks} never logs {what}"
    if _is_synced(found.visit.step):
        message += ": sync_dist=True waits for the others, which never come"
    else:
        message += ": without rank_zero_only=True Lightning takes it for a value of every rank"
    is_first = is_direct and found.reached and found.atom in (ZERO, LOCAL_ZERO)
    trace = (*guard_of(found), *way_to(found.visit))
    yield Report(event.node, message, trace, condition, _say_so if is_first else None)


def _say_so(tree: ConcreteTree, call: cst.CSTNode) -> Repair | None:
    """``rank_zero_only=True`` in place of what contradicts it, or after the last argument."""
    return Repair(True, tuple(_changes(tree, call))) if isinstance(call, cst.Call) else None


def _changes(tree: ConcreteTree, call: cst.Call) -> Iterator[Change]:
    """``rank_zero_only=True`` in place of what contradicts it, or after the last argument."""
    denied, synced = keyword(call, "rank_zero_only"), keyword(call, "sync_dist")
    if denied is not None:
        yield Change(denied, "True")
    for arg in call.args if is_name(synced, "True") else ():
        if arg.value is synced:
            yield Change(arg, "rank_zero_only=True" if denied is None else "sync_dist=False")
    if denied is None and not is_name(synced, "True"):
        yield Change.adding(tree, call, "rank_zero_only=True")
