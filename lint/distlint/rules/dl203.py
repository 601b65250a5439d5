"""DL203."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.evaluation import Log, logs
from distlint.facts.metric_calls import is_loss
from distlint.facts.tree import walk
from distlint.model import Example, Hit, Rule

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts


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

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Judge what rank 0 alone logs."""
        evaluated = {log.call for log in facts.evaluation_logs}
        for log in logs(facts):
            if log.flag("rank_zero_only") is not True:
                continue
            if log.flag("sync_dist") is True:
                if _source(facts, log) is not None or any(is_loss(facts, value) for value in log.values(facts)):
                    yield Hit(
                        log.call,
                        "rank_zero_only=True switches sync_dist=True off: nothing is reduced, the number is rank 0's",
                    )
            elif log.call in evaluated and not _is_in_pipeline(facts, log):
                source = _source(facts, log)
                if source is not None:
                    message = (
                        "rank_zero_only=True logs a value made from this rank's share of the data, so the number is "
                        "rank 0's: gather it, or let a metric object compute it, on every rank first"
                    )
                    yield Hit(log.call, message, ((source, "data", facts.code(source)),))


def _is_in_pipeline(facts: ModuleFacts, log: Log) -> bool:
    """``if is_pipeline_last_stage()``: only there the value exists, and who has it has reduced it."""
    tests = (above.test for above in facts.ancestors(log.call) if isinstance(above, cst.If))
    return any("pipeline" in node.value for test in tests for node in walk(test) if isinstance(node, cst.Name))


def _source(facts: ModuleFacts, log: Log) -> cst.CSTNode | None:
    found = (facts.shares.source(value) for value in log.values(facts))
    return next((source for source in found if source is not None), None)
