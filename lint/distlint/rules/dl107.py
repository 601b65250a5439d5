"""DL107."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.data_tests import DataTests
from distlint.facts.divergence import Divergence, divergences, guard_text
from distlint.facts.logs import UNKNOWN_KEYS, find_logs, log_call, may_log, waits_for_epoch
from distlint.facts.projection import Projector
from distlint.facts.rank_names import RANK_TOKENS
from distlint.facts.ranks import RankTests
from distlint.facts.tree import argument, tail, walk
from distlint.model import Example, Hit, Rule

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts
    from distlint.facts.operations import Operation


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
            {9: "fails log 'large' where others log 'small'"},
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

    def can_matter(self, source: bytes) -> bool:
        """Most files that mention logs have no such method."""
        return may_log(source)

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Compare the keys that each kind of rank logs, and read the keys that name the rank."""
        logs = find_logs(facts)
        if not logs:
            return
        synced = {call: made for call, made in logs.items() if _is_synced(facts, call, made)}
        yield from _differing(facts, Projector(facts, logs))
        late = {call for call, made in synced.items() if isinstance(made, str) and waits_for_epoch(facts, call)}
        for is_late in (False, True):  # what is reduced in the step never meets what is reduced at the epoch's end
            together = {call: made for call, made in synced.items() if (call in late) == is_late}
            yield from _differing(facts, Projector(facts, together, DataTests(facts)))
        yield from _naming_the_rank(facts, synced)


def _is_synced(facts: ModuleFacts, call: cst.Call, made: Operation) -> bool:
    found = log_call(facts, call)
    return found.is_synced if found is not None else not isinstance(made, str)


def _differing(facts: ModuleFacts, projector: Projector) -> Iterator[Hit]:
    for found in divergences(facts, projector):
        if found.instead is not None and not any(label.endswith(UNKNOWN_KEYS) for label in _labels(found)):
            yield _hit(facts, projector, found)


def _labels(found: Divergence) -> tuple[str, str]:
    return found.label, found.instead_label


def _hit(facts: ModuleFacts, projector: Projector, found: Divergence) -> Hit:
    here, there = (label.removeprefix("log of ").replace('"', "'") for label in _labels(found))
    assert found.instead is not None
    shown = guard_text(facts, found.guard)
    outcome = "holds" if _holds(projector, found) else "fails"
    return Hit(
        found.call,
        f"ranks for which this test ({shown}) {outcome} log {here} where others log {there}",
        ((found.guard, "guard", shown), (found.instead, "others", facts.code(found.instead))),
    )


def _holds(projector: Projector, found: Divergence) -> bool:
    """Whether the test, as it is written, holds for the ranks that make the call: ``not`` turns the role's around."""
    if not isinstance(found.guard, cst.BaseExpression):
        return found.by_role
    role = found.role if found.by_role else dict.fromkeys(found.role, False)
    holds = projector.tests.decide(found.guard, role)
    return holds if isinstance(holds, bool) else found.by_role


def _naming_the_rank(facts: ModuleFacts, synced: Mapping[cst.Call, Operation]) -> Iterator[Hit]:
    tests = RankTests(facts)
    for call in synced:
        key = argument(call, 0, "name") if tail(call.func) == "log" else None
        if not isinstance(key, cst.FormattedString | cst.BinaryOperation):
            continue
        for part in walk(key):
            if isinstance(part, cst.Name | cst.Attribute | cst.Call) and tests.rank(part) is not None:
                message = f"this key names the rank ({facts.code(key)}): every rank reduces under another key"
                yield Hit(call, message, ((part, "rank", facts.code(part)),))
                break
