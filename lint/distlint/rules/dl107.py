"""DL107."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Step
from distlint.analysis.events import Node
from distlint.analysis.formula import DATA, RANK, atoms, is_true
from distlint.analysis.logs import UNKNOWN_KEYS, Log, key_of, logs, may_log, only_logs
from distlint.analysis.sequences import Divergence, divergences
from distlint.api.tokens import RANK_TOKENS
from distlint.model import Example, Report, Rule
from distlint.tracing import guard_of, named


class LogKeysDiffer(Rule):
    """Ranks log under different keys: Lightning reduces one rank's value with another value of the next.

    With ``sync_dist=True`` every rank reduces its logged values one after the other, and nothing but their order
    says which belong together:

        rank 0   all_reduce(0.71)   its "easy"
        rank 1   all_reduce(8.30)   its "hard"
        logged   "easy" 4.50 on rank 0, "hard" 4.50 on rank 1

    No error is raised. Where one rank has more keys than another, the last reduction hangs. Without ``sync_dist``
    the logger writes the keys of rank 0, and a callback that monitors a key fails on the ranks that lack it.

    How to fix: log the same keys on every rank, in the same order, with a neutral value where there is no other;
    for a mean over some of the examples, log a ``torchmetrics.MeanMetric`` that is updated where there are any.

    The rule looks at branches on the rank (any two logs) and on the batch (logs with ``sync_dist=True``), and at
    keys that name the rank.

    Silent: branches on what is the same on every rank, such as ``self.training`` or the step; the same keys in
    another form; dicts whose keys cannot be seen; modules of ``distmetrics``, which combine an epoch's values by key.

    When to ignore: all ranks are sure to take the same arm, as in a model-parallel job.
    """

    code, name, group = "DL107", "log-keys-differ", "divergence"
    tokens = ((b"log",), (b"sync_dist", *RANK_TOKENS))
    evidence = staticmethod(may_log)
    bad = (
        Example(
            """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self(batch)
        if batch["level"].mean() < 0.5:
            self.log("easy", loss, sync_dist=True)
        else:
            self.log("hard", loss, sync_dist=True)
        self.log(f"loss_{self.global_rank}", loss, sync_dist=True)

    def on_validation_epoch_end(self):
        if self.global_rank == 0:
            self.log("first", self.scale)
        else:
            self.log("other", self.scale)
""",
            {7: "'hard'", 10: "names the rank", 14: "'other'"},
        ),
        Example(
            """\
import pytorch_lightning as pl

class Model(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self(batch)
        if loss > 1:
            self.log_dict({"loss": loss, "large": loss}, sync_dist=True)
        else:
            self.log_dict({"loss": loss, "small": loss}, sync_dist=True)
        return loss
""",
            {7: "'small'"},
        ),
        Example(
            """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self(batch)
        if not loss > 1:
            self.log("small", loss, sync_dist=True)
            return
        self.log("large", loss, sync_dist=True)
""",
            {7: "holds log 'small' where others log 'large'"},
        ),
    )
    good = (
        """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self(batch)
        if self.training:
            self.log("train", loss, sync_dist=True)
        else:
            self.log("val", loss, sync_dist=True)
        if loss > 1:
            self.log("loss", loss.clamp(max=1), sync_dist=True)
        else:
            self.log("loss", loss, sync_dist=True)
        if loss > 1:
            self.log("easy", loss)
        else:
            self.log("hard", loss)
        if loss > 2:
            self.log_dict(self.large(loss), sync_dist=True)
        else:
            self.log_dict(self.small(loss), sync_dist=True)
        self.log(f"loss_of_epoch_{self.current_epoch}", loss, sync_dist=True)
        self.log(f"loss_of_rank_{self.global_rank}", loss)
""",
        """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def on_validation_epoch_end(self):
        if self.global_rank == 0:
            self.log("first", self.scale, rank_zero_only=True)
        else:
            print(self.scale)
        if self.global_rank == 0:
            self.log("scale", self.scale)
        else:
            self.log("scale", self.scale)
""",
        """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self(batch)
        if loss > 1:
            self.log("large", 1.0, on_step=True, on_epoch=False, sync_dist=True)
            return
        self.log("loss", loss, sync_dist=True)
        self.log("large", 0.0, on_step=True, on_epoch=False, sync_dist=True)
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Compare the keys that each kind of rank logs, and read the keys that name the rank."""
        for report in analysis.reports.values():
            yield from _differing(only_logs(report.body, key_of), RANK)
            yield from _differing(only_logs(report.body, _reduced_at_once), DATA)
            yield from _differing(only_logs(report.body, _reduced_late), DATA)
        yield from _naming_the_rank(analysis)


def _reduced_at_once(step: Step) -> str:
    """What is reduced in the step never meets what is reduced at the epoch's end."""
    return key_of(step) if step.effect.kind == "log" and not _is_late(step) else ""


def _reduced_late(step: Step) -> str:
    return key_of(step) if step.effect.kind == "log" and _is_late(step) else ""


def _is_late(step: Step) -> bool:
    return step.event is not None and Log(step.event).waits_for_epoch


def _differing(body: tuple[Node, ...], varies: int) -> Iterator[Report]:
    for found in divergences(body, lambda atom: atom.varies == varies, lambda step: True):
        _, event = named(found.visit)
        if event is None or found.instead is None or UNKNOWN_KEYS in (found.visit.label, found.instead.label):
            continue
        place, other = found.visit.guard, found.instead.step.place
        shown = f"if {place.place.text}" if place is not None else found.atom.text
        outcome = "holds" if _holds(found) else "fails"
        message = (
            f"ranks for which this test ({shown}) {outcome} log {found.visit.label} "
            f"where others log {found.instead.label}"
        )
        yield Report(event.node, message, (*guard_of(found), (other.path, other.line, "others", other.text)))


def _holds(found: Divergence) -> bool:
    """Whether the test, as it is written, holds for the ranks that make the call."""
    if found.visit.guard is None:
        return found.reached
    test = found.visit.guard.test
    return is_true(test, {**{each.text: True for each in atoms(test)}, found.atom.text: found.reached})


def _naming_the_rank(analysis: Analysis) -> Iterator[Report]:
    for log in logs(analysis):
        key, node = log.event.argument(0, "name"), log.event.argument_node(0, "name")
        is_written = isinstance(node, ast.JoinedStr | ast.BinOp) and not log.many
        if is_written and key is not None and key.is_rank and log.flag("sync_dist") and not log.flag("rank_zero_only"):
            message = f"this key names the rank ({log.keys()}): every rank reduces under another key"
            yield Report(log.event.node, message)
