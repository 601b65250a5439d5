"""DL301."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

import libcst as cst
import libcst.matchers as m

from distlint.analysis import Analysis, Event
from distlint.analysis.containers import (
    assigned,
    assignments,
    is_emptied,
    is_list,
    is_small,
    mentions,
    name_of,
    sees_bases,
)
from distlint.analysis.stages import Stages
from distlint.concrete import ConcreteTree
from distlint.model import Change, Condition, Example, Repair, Report, Rule, Severity
from distlint.nodes import within
from distlint.syntax import FunctionNode, dotted

_STEP = re.compile(r"(?:on_)?(train|training|validation|test)_(?:step|step_end|batch_start|batch_end)")
_UNSEEN = Condition("data", "unless a base class in another file empties it")


class StepOutputsNeverCleared(Rule):
    """A list on the module grows with every step, and nothing ever empties it.

    The list outlives the epoch. The second epoch's metric is computed from both epochs' outputs, the sanity
    check's included, and memory grows until the job is killed:

        epoch 1   accuracy of 10000 examples
        epoch 2   accuracy of 20000 examples, half of them from the weights of epoch 1

    How to fix: ``self.outputs.clear()`` at the end of ``on_validation_epoch_end``; or a metric object, whose
    state the trainer resets.

    Silent: lists that anything in the file empties or assigns anew outside of ``__init__``, or that a base class in
    another file empties; lists that no ``*_epoch_end`` hook of the class reads, kept for the caller; numbers
    (``loss.item()``, ``losses.tolist()``), kept as a history; what predicting keeps, which is done once; what is
    added under a test of the list or of the epoch. For review where a base class is in a file that is not seen.

    When to ignore: the module runs for one epoch, or the whole history is wanted.
    """

    code, name, group = "DL301", "step-outputs-never-cleared", "cost"
    severity = Severity.ERROR
    tokens = (
        (b".append", b".extend", b".insert", b"+="),
        tuple(sorted(name.encode() for name in ("_step", "_batch_end", "_batch_start"))),
        (b"epoch_end",),
    )
    bad = (
        Example(
            """\
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []
        self.scores: list = list()
        self.tested = {"loss": []}

    def validation_step(self, batch, batch_idx):
        self.outputs.append(self(batch))

    def on_validation_epoch_end(self):
        scores = torch.cat(self.outputs)
        self.log("score", scores.mean(), sync_dist=True)

    def training_step(self, batch, batch_idx):
        loss = self(batch).sum()
        self.scores += [loss]
        return loss

    def on_train_epoch_end(self):
        self.log("loss", self._mean())

    def _mean(self):
        return torch.stack(self.scores).mean()

    def test_step(self, batch, batch_idx):
        self.tested["loss"].append(self(batch))

    def on_test_epoch_end(self):
        print(len(self.tested["loss"]))
""",
            {12: "self.outputs", 20: "self.scores", 30: "self.tested"},
        ),
        Example(
            """\
from lightning.pytorch import Callback

class Keep(Callback):
    def __init__(self):
        self.predictions = []

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self._keep(outputs)

    def _keep(self, outputs):
        self.predictions.append(outputs)

    def on_validation_epoch_end(self, trainer, pl_module):
        show(trainer, self.predictions)
""",
            {11: "self.predictions"},
        ),
        Example(
            """\
from lightning.pytorch import LightningModule
from project.base import Base

class Model(Base, LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def validation_step(self, batch, batch_idx):
        self.outputs.append(self(batch))

    def on_validation_epoch_end(self):
        self.log("score", score_of(self.outputs))
""",
            {10: "unless a base class"},
        ),
    )
    good = (
        """\
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.outputs = []
        self.targets = []
        self.losses = []
        self.few = []
        self.predictions = []
        self.fresh = []

    def training_step(self, batch, batch_idx):
        loss = self(batch).sum()
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        self.outputs.append(self(batch))
        self.targets.append(batch[1])
        self.fresh.append(batch[1])
        if len(self.few) < 8:
            self.few.append(batch[0])

    def test_step(self, batch, batch_idx):
        self.predictions.append(self(batch))

    def on_validation_epoch_start(self):
        self.fresh = []

    def on_validation_epoch_end(self):
        scores = torch.cat(self.outputs)
        self.outputs.clear()
        del self.targets[:]
        self.log("score", scores.mean(), sync_dist=True)
""",
        """\
from lightning.pytorch import LightningModule
class Cleared(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.second = [], []
        self.parts = []

    def validation_step(self, batch, batch_idx):
        self.parts.append(self(batch))

    def on_validation_epoch_end(self):
        for outputs in (self.parts,):
            outputs.clear()

class Plain:
    def __init__(self):
        self.outputs = []

    def validation_step(self, batch):
        self.outputs.append(batch)
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Look at every list of ``self`` that grows while a trainer runs its steps."""
        grown = [event for event in analysis.events("grow") if name_of(event.node).startswith("self.")]
        if not grown:
            return
        stages = Stages(analysis)
        for event in grown:
            owner, name = event.function.owner, name_of(event.node)
            steps = [found for way in stages.ways(event) if (found := _STEP.fullmatch(way.hook))]
            if owner is None or not steps or is_small(event) or _is_bounded(event, name):
                continue
            values = assigned(analysis.index, owner, name)
            hooks = [hook for hook in stages.epoch_ends(owner) if mentions(hook.node, name)]
            if not hooks or not is_list(values) or is_emptied(analysis, owner, name):
                continue
            stage = "training" if steps[0][1].startswith("train") else steps[0][1]
            message = (
                f"{name} grows with every {stage} step and nothing empties it: {name}.clear() at the end of the epoch"
            )
            is_plain = len(hooks) == 1 and all(isinstance(value, ast.List) for value in values)
            repair = partial(_repair, hooks[0], name) if is_plain and _can_clear(hooks[0], stage, name) else None
            condition = None if sees_bases(analysis, owner) else _UNSEEN
            yield Report(event.node, message, condition=condition, repair=repair)


def _is_bounded(event: Event, name: str) -> bool:
    """Whether a test of the list, or of the epoch, decides whether it grows."""
    tests = [guard.node for guard in event.guards if guard.kind not in ("for", "while", "with")]
    of_epoch = (test for test in tests if any(within(test, ast.Eq)))
    epochs = ("self.current_epoch", "self.trainer.current_epoch", "trainer.current_epoch")
    return any(mentions(test, name) for test in tests) or any(mentions(test, *epochs) for test in of_epoch)


def _can_clear(hook: FunctionNode, stage: str, name: str) -> bool:
    """Whether a hook ends where the list may be emptied: in its stage, with one way out, and without keeping it."""
    is_of_stage = hook.name.removeprefix("on_").removesuffix("_epoch_end") in (stage, stage.removesuffix("ing"))
    is_kept = any(dotted(value) == name for node in ast.walk(hook.node) for _, value in assignments(node))
    return is_of_stage and not is_kept and not any(within(hook.node, ast.Return))


def _repair(hook: FunctionNode, name: str, tree: ConcreteTree, node: cst.CSTNode) -> Repair | None:
    """``self.x.clear()`` at the end of the hook."""
    assert hook.owner is not None
    method = m.FunctionDef(name=m.Name(hook.name), body=m.IndentedBlock())
    for owner in m.findall(tree.module, m.ClassDef(name=m.Name(hook.owner.name))):
        for each in m.findall(owner, method):
            assert isinstance(each, cst.FunctionDef)
            return Repair(True, (Change(each.body.body[-1], f"{name}.clear()", "after"),))
    return None
