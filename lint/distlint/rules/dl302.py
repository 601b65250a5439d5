"""DL302."""

from __future__ import annotations

from collections.abc import Iterator

from distlint.analysis import Analysis, Event
from distlint.analysis.arguments import constants_of
from distlint.analysis.logs import Log
from distlint.analysis.stages import Stages
from distlint.model import SEVERAL_DEVICES, Example, Report, Rule, Severity

_STEPS = frozenset({"training_step", "validation_step", "test_step", "predict_step"})
_LOGGED = (
    "sync_dist=True reduces over the ranks in every training step: on_step=False, on_epoch=True logs the mean of the "
    "epoch with one reduction"
)


class SyncDistEveryStep(Rule):
    """A synchronisation in every step: all ranks wait for each other once per batch and value.

    ``sync_dist=True`` reduces over the ranks whenever the value is logged per step, which is the default in
    ``training_step``, whether or not the logger writes it. ``compute()`` of a metric gathers its state. Each
    costs a round over the network and stops the GPU's queue:

        10 values logged with sync_dist, 0.2 ms each over the network: 2 ms of a step of 20 ms

    How to fix: ``on_step=False, on_epoch=True`` reduces once, at the end of the epoch; or leave ``sync_dist``
    out of ``training_step``, where the value of rank 0 shows the trend as well. Update metrics in the step, and
    log the metric object: it is computed once. Where a step's value of all ranks is wanted, ``distmetrics.Log``
    (docs/log.md) adds up on each rank, and combines all names and steps of a window in one exchange.

    Silent: values logged by evaluation, which must be synchronised, or once per epoch; metric objects, which
    ``sync_dist`` does not touch; what runs under a condition, now and then (``if batch_idx % 100 == 0``); flags that
    are not written out; ``rank_zero_only=True``, which switches ``sync_dist`` off (DL203).

    When to ignore: the step is long compared with a reduction, and the mean over ranks is wanted per step.
    """

    code, name, group = "DL302", "sync-dist-every-step", "cost"
    severity = Severity.WARNING
    tokens = ((b"sync_dist", b"compute"), (b"_step",))
    bad = (
        Example(
            """\
import torchmetrics
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(task="binary")

    def training_step(self, batch, batch_idx):
        loss = self.shared(batch, "train")
        self.log("loss", loss, sync_dist=True)
        self.log_dict({"double": 2 * loss}, on_epoch=True, sync_dist=True)
        return loss

    def shared(self, batch, stage):
        loss = self(batch).mean()
        self.log(f"{stage}_shared", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.accuracy.update(self(batch), batch[1])
        self.log("accuracy", self.accuracy.compute())
""",
            {11: "training step", 12: "training step", 17: "training step", 22: "compute"},
        ),
    )
    good = (
        """\
import torchmetrics
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(task="binary")
        self.local = torchmetrics.Accuracy(task="binary", sync_on_compute=False)

    def training_step(self, batch, batch_idx):
        loss = self(batch).mean()
        self.log("loss", loss)
        self.log("epoch_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        self.log("some", loss, on_step=self.per_step, sync_dist=True)
        self.log("accuracy", self.accuracy, sync_dist=True)
        self.log("own", loss, sync_dist=self.sync)
        self.log("first", loss, sync_dist=True, rank_zero_only=True)
        self.log("perhaps", loss, sync_dist=True, rank_zero_only=self.quiet)
        self.shared(batch, "train")
        if batch_idx % 100 == 0:
            self.log("seldom", loss, sync_dist=True)
            self.log("computed", self.accuracy.compute())
        return loss

    def shared(self, batch, stage):
        if stage != "train":
            self.log(f"{stage}_shared", self(batch).mean(), sync_dist=True)

    def validation_step(self, batch, batch_idx):
        self.log("loss", self(batch).mean(), on_step=True, on_epoch=True, sync_dist=True)
        self.log("local", self.local.compute())
        self.log("helper", self.helper.compute())

    def on_validation_epoch_end(self):
        self.log("accuracy", self.accuracy.compute(), sync_dist=True)
""",
        """\
def training_step(model, batch, logger):
    loss = model(batch)
    logger.log("loss", loss, sync_dist=True)
    return loss
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Look at what every step of a LightningModule logs and computes."""
        condition = None if analysis.devices == "many" else SEVERAL_DEVICES
        stages = Stages(analysis)
        for event in analysis.events("log", "collective"):
            hooks = [way.hook for way in stages.ways(event) if way.hook in _STEPS and way.is_always_taken(event)]
            if event.kind == "log" and "training_step" in hooks and _syncs_in_step(Log(event)):
                yield Report(event.node, _LOGGED, condition=condition)
            elif hooks and event.label == "compute" and _gathers(event):
                step = hooks[0].replace("_", " ")
                message = f"compute() gathers the metric's state in every {step}: log the metric object"
                yield Report(event.node, message, condition=condition)


def _syncs_in_step(log: Log) -> bool:
    on_step = log.flag("on_step") if "on_step" in log.event.options else True
    is_synced = log.is_lightning and log.flag("sync_dist") is True and log.flag("rank_zero_only") is False
    return is_synced and on_step is True and any(value.is_share for _, value in log.entries())


def _gathers(compute: Event) -> bool:
    metric = compute.receiver
    return metric.family == "metric" and constants_of(metric.call).get("sync_on_compute") is not False
