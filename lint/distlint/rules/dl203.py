"""DL203."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Value
from distlint.analysis.logs import Log, logs
from distlint.analysis.stages import Stages
from distlint.model import Example, Report, Rule
from distlint.tracing import data_of

_SWITCHED_OFF = "rank_zero_only=True switches sync_dist=True off: nothing is reduced, the number is rank 0's"
_NOT_SYNCED = (
    "rank_zero_only=True logs a value made from this rank's share of the data, so the number is rank 0's: gather it, "
    "or let a metric object compute it, on every rank first"
)


class RankZeroOnlyNotSynced(Rule):
    """``rank_zero_only=True`` on a value of one rank: rank 0's share is logged as if it were all data.

    The flag only says who logs. It synchronises nothing, and it switches ``sync_dist=True`` off: with both,
    Lightning reduces nothing and logs rank 0's value.

        rank 0   half of the validation set    accuracy 0.91   <- logged
        rank 1   the other half                accuracy 0.74
        all data                               accuracy 0.825

    How to fix: bring the value together first, on every rank (``self.all_gather``, a metric's ``compute()``),
    and then log it on rank 0; or drop the flag and use ``sync_dist=True`` or a metric object.

    Silent: gathered and reduced values, metric objects and ``compute()``, values that are no data of this rank
    (learning rate, epoch), logs of the training step (unless both flags are set), flags that are not
    written out, values of the last stage of a pipeline.

    When to ignore: only rank 0 evaluates, or the other ranks hold nothing.
    """

    code, name, group = "DL203", "rank-zero-only-not-synced", "wrong value"
    tokens = ((b"rank_zero_only",), (b".log",))
    bad = (
        Example(
            """\
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.hits = []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, sync_dist=True, rank_zero_only=True)
        return loss

    def validation_step(self, batch, batch_idx):
        hits = self(batch) == batch.y
        self.hits.append(hits)
        self.log("hits", hits.float().mean(), rank_zero_only=True)

    def on_validation_epoch_end(self):
        accuracy = torch.cat(self.hits).float().mean()
        if self.trainer.is_global_zero:
            self.log("accuracy", accuracy, rank_zero_only=True)
""",
            {11: "switches sync_dist", 17: "rank 0's", 22: "rank 0's"},
        ),
    )
    good = (
        """\
import torch
import torchmetrics
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.hits = []
        self.accuracy = torchmetrics.Accuracy(task="binary")

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, rank_zero_only=True)
        self.log("rate", self.lr, rank_zero_only=True, sync_dist=False)
        torch.distributed.broadcast(loss, src=3)
        self.log("last", loss, rank_zero_only=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.hits.append(self(batch) == batch.y)
        self.accuracy.update(self(batch), batch.y)

    def on_validation_epoch_end(self):
        gathered = self.all_gather(torch.cat(self.hits))
        metric = self.accuracy.compute()
        self.log("epoch", self.current_epoch, rank_zero_only=True)
        if self.trainer.is_global_zero:
            self.log("accuracy", gathered.float().mean(), rank_zero_only=True)
            self.log("metric", metric, rank_zero_only=True)
        if is_pipeline_last_stage():
            self.log("stage", torch.cat(self.hits).float().mean(), rank_zero_only=True)
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge what rank 0 alone logs."""
        stages = Stages(analysis)
        for log in logs(analysis):
            local = _local(log) if log.flag("rank_zero_only") and log.is_lightning else None
            if local is None:
                continue
            if log.flag("sync_dist"):
                yield Report(log.event.node, _SWITCHED_OFF, data_of(analysis, local))
            elif log.flag("sync_dist") is False and stages.evaluates(log.event) and not _is_on_other_rank(log):
                yield Report(log.event.node, _NOT_SYNCED, data_of(analysis, local))


def _local(log: Log) -> Value | None:
    """A value that differs between ranks, of those that are logged."""
    return next((value for _, value in log.entries() if value.is_share), None)


def _is_on_other_rank(log: Log) -> bool:
    """Whether an unknown function picks ranks, as for the last stage of a pipeline: it may know more."""
    return any(guard.kind == "branch" and isinstance(guard.node, ast.Call) for guard in log.event.guards)
