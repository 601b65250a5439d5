"""DL302."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.classes import STEP_HOOKS, ClassFacts, reached
from distlint.facts.collectives import receiver_kind
from distlint.facts.programs import Programs
from distlint.facts.tree import argument, is_name, keyword, tail, walk, walk_scope
from distlint.model import Example, Hit, Rule, Severity

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts

_SELDOM_WORDS = ("step", "batch", "idx", "last", "every", "epoch", "interval", "freq", "train", "sanity")


class SyncDistEveryStep(Rule):
    """A synchronisation in every step: all ranks wait for each other once per batch and value.

    ``sync_dist=True`` reduces over the ranks whenever the value is logged per step, which is the default in
    ``training_step``, whether or not the logger writes it. ``compute()`` of a metric gathers its state. Each
    costs a round over the network and stops the GPU's queue:

        10 values logged with sync_dist, 0.2 ms each over the network: 2 ms of a step of 20 ms

    How to fix: ``on_step=False, on_epoch=True`` reduces once, at the end of the epoch; or leave ``sync_dist``
    out of ``training_step``, where the value of rank 0 shows the trend as well. Update metrics in the step, and
    log the metric object: it is computed once.

    Silent: values logged by evaluation, which must be synchronised, or once per epoch; metric objects, which
    ``sync_dist`` does not touch; what runs now and then (``if batch_idx % 100 == 0``); helpers with a condition
    around; flags that are not written out; ``rank_zero_only=True``, which switches ``sync_dist`` off (DL203); modules
    whose trainers, in Python or in settings, are all made for one device or are not there at all (DL202).

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

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Look at the steps of every LightningModule, and at what they call."""
        reported: set[cst.CSTNode] = set()
        programs = Programs(facts)
        for owner in facts.classes.values():
            if "lightning" not in owner.kinds:
                continue
            for hook in sorted(STEP_HOOKS & owner.methods.keys(), key=lambda name: name != "training_step"):
                for call, is_direct in _calls(facts, owner, owner.methods[hook]):
                    message = None if call in reported else _per_step(facts, call, hook)
                    if message is not None and not _is_seldom(facts, call, is_direct=is_direct):
                        reported.add(call)
                        if not programs.is_for_one_device:
                            yield Hit(call, message)


def _calls(facts: ModuleFacts, owner: ClassFacts, hook: cst.FunctionDef) -> Iterator[tuple[cst.Call, bool]]:
    """Every call in a hook and in the class's methods that it reaches, and whether it stands in the hook itself."""

    def is_often(call: cst.Call) -> bool:
        return not _is_seldom(facts, call, is_direct=facts.function_of(call) is hook)

    for method, _ in reached(facts, owner, [hook], is_often):
        for node in walk_scope(method):
            if isinstance(node, cst.Call):
                yield node, method is hook


def _per_step(facts: ModuleFacts, call: cst.Call, hook: str) -> str | None:
    """Why a call synchronises whenever it runs; None when it does not, or not certainly."""
    name = tail(call.func)
    if name == "compute" and isinstance(call.func, cst.Attribute):
        is_metric = receiver_kind(facts, call.func.value) == "metric"
        step = hook.replace("_", " ")
        return f"compute() gathers the metric's state in every {step}: log the metric object" if is_metric else None
    if hook != "training_step" or name not in ("log", "log_dict") or facts.self_attribute(call.func) is None:
        return None
    if not is_name(keyword(call, "sync_dist"), "True") or _is_metric(facts, argument(call, 1, "value"), name):
        return None
    if keyword(call, "rank_zero_only") is not None and not is_name(keyword(call, "rank_zero_only"), "False"):
        return None
    on_step = keyword(call, "on_step")
    if on_step is None or is_name(on_step, "True"):
        return (
            "sync_dist=True reduces over the ranks in every training step: "
            "on_step=False, on_epoch=True reduces once per epoch"
        )
    return None


def _is_metric(facts: ModuleFacts, value: cst.BaseExpression | None, name: str) -> bool:
    """A metric object, or an attribute that may be one."""
    return name == "log" and facts.self_attribute(value) is not None


def _is_seldom(facts: ModuleFacts, call: cst.Call, *, is_direct: bool) -> bool:
    """Under a condition that lets few steps through; in a helper, under any."""
    for above in facts.ancestors(call):
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, cst.If | cst.IfExp) and (not is_direct or _speaks_of_time(above.test)):
            return True
    return False


def _speaks_of_time(test: cst.BaseExpression) -> bool:
    for node in walk(test):
        if isinstance(node, cst.Modulo):
            return True
        if isinstance(node, cst.Name) and any(word in node.value.lower() for word in _SELDOM_WORDS):
            return True
    return False
