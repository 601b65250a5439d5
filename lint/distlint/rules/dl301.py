"""DL301."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.classes import ClassFacts, base_names, reached
from distlint.facts.emptied import ANY, emptied
from distlint.facts.growth import grown
from distlint.facts.project import ClassSummary
from distlint.facts.scopes import LOCAL
from distlint.facts.tree import statements, tail, walk, walk_scope
from distlint.model import Change, Example, Hit, Repair, Rule, Severity

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts

# Bases that keep nothing of their subclasses' lists, by the package they come from.
_FRAMEWORKS = ("lightning.", "pytorch_lightning.", "torch.nn.", "abc.", "builtins.", "typing.", "torchmetrics.")


class StepOutputsNeverCleared(Rule):
    """A list on the module grows with every step, and nothing ever empties it.

    The list outlives the epoch. The second epoch's metric is computed from both epochs' outputs, the sanity
    check's included, and memory grows until the job is killed:

        epoch 1   accuracy of 10000 examples
        epoch 2   accuracy of 20000 examples, half of them from the weights of epoch 1

    How to fix: ``self.outputs.clear()`` at the end of ``on_validation_epoch_end``; or a metric object, whose
    state the trainer resets.

    Silent: lists that anything in the file empties or assigns anew outside of ``__init__``, or that a base class in
    another file empties; a class with a base that is not known; lists that no ``*_epoch_end`` hook of the class
    reads, kept for the caller; numbers (``loss.item()``, ``losses.tolist()``), kept as a history; what predicting
    keeps, which is done once; lists with a test of their length; those of one epoch (``if self.current_epoch ==
    n``).

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
from project.base import Base

class Model(Base):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def validation_step(self, batch, batch_idx):
        self.outputs.append(self(batch))

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

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Look at every class that a trainer drives and whose bases are known."""
        here: set[str] | None = None
        for owner in facts.classes.values():
            if not owner.kinds & {"lightning", "callback"}:
                continue
            found = list(grown(facts, owner))
            if not found or not _knows_bases(facts, owner):
                continue
            here = emptied(facts) if here is None else here
            away = here | _emptied_elsewhere(facts, owner)
            for node, attribute, stage in found if ANY not in away else ():
                if attribute not in away and _counts(facts, owner, node, attribute):
                    yield _hit(facts, owner, node, attribute, stage)


def _knows_bases(facts: ModuleFacts, owner: ClassFacts) -> bool:
    """Whether every base is of a framework, of this module, or known to the project with all of its own."""
    for full in base_names(facts, owner.node):
        if full.startswith(LOCAL):
            continue
        if not _knows_base(facts, full):
            return False
    return all(_knows_bases(facts, base) for base in owner.bases)


def _knows_base(facts: ModuleFacts, full: str) -> bool:
    if full.startswith(_FRAMEWORKS):
        return True
    found = list(_project_bases(facts, full))
    names = {each.name for each in found}
    above = [base for each in found for base in each.bases]
    return bool(found) and all(base in names or base.startswith(_FRAMEWORKS) for base in above)


def _project_bases(facts: ModuleFacts, full: str) -> Iterator[ClassSummary]:
    """A class of another file, and its bases."""
    found = facts.project.find_class(full)
    return facts.project.ancestors(found.name) if found is not None else iter(())


def _emptied_elsewhere(facts: ModuleFacts, owner: ClassFacts) -> frozenset[str]:
    """What bases in other files empty."""
    found: frozenset[str] = frozenset()
    for info in owner.lineage():
        for full in base_names(facts, info.node):
            for ancestor in _project_bases(facts, full):
                found |= ancestor.emptied
    return found


def _counts(facts: ModuleFacts, owner: ClassFacts, node: cst.CSTNode, attribute: str) -> bool:
    """Whether the list is what an epoch is judged by, and nothing keeps it short."""
    for above in facts.ancestors(node):
        if isinstance(above, cst.If) and any(_is_own(facts, part, attribute) for part in walk(above.test)):
            return False
        if isinstance(above, cst.If) and _is_of_one_epoch(above.test):
            return False
        if isinstance(above, cst.FunctionDef):
            break
    return any(True for _ in _epoch_ends(facts, owner, attribute))


def _is_of_one_epoch(test: cst.BaseExpression) -> bool:
    """``self.current_epoch == n``: the list is filled once."""
    compared = isinstance(test, cst.Comparison) and len(test.comparisons) == 1 and test.comparisons[0].operator
    return isinstance(compared, cst.Equal) and any(tail(part) == "current_epoch" for part in walk(test))


def _epoch_ends(facts: ModuleFacts, owner: ClassFacts, attribute: str) -> Iterator[cst.FunctionDef]:
    """The hooks at the end of an epoch that read the attribute, themselves or by a method of theirs."""
    for name, method in owner.methods.items():
        if name.endswith("epoch_end"):
            parts = (part for each, _ in reached(facts, owner, [method]) for part in walk(each))
            if any(_is_own(facts, part, attribute) for part in parts):
                yield method


def _is_own(facts: ModuleFacts, node: cst.CSTNode, attribute: str) -> bool:
    return isinstance(node, cst.Attribute) and facts.self_attribute(node) == attribute


def _hit(facts: ModuleFacts, owner: ClassFacts, node: cst.CSTNode, attribute: str, stage: str) -> Hit:
    return Hit(
        node,
        f"self.{attribute} grows with every {stage} step and nothing empties it:"
        f" self.{attribute}.clear() at the end of the epoch",
        repair=_repair(facts, owner, attribute, stage),
    )


def _repair(facts: ModuleFacts, owner: ClassFacts, attribute: str, stage: str) -> Repair | None:
    """``self.x.clear()`` at the end of the hook of the same stage, when it is the only reader and has one way out."""
    if not all(isinstance(value, cst.List) for value in owner.values(attribute)):
        return None
    hooks = list(_epoch_ends(facts, owner, attribute))
    of_stage = f"{'train' if stage == 'training' else stage}_epoch_end"
    if len(hooks) != 1 or hooks[0].name.value.removeprefix("on_") not in (of_stage, f"{stage}_epoch_end"):
        return None
    hook = hooks[0]
    body = statements(hook.body)
    if not isinstance(hook.body, cst.IndentedBlock) or any(isinstance(part, cst.Return) for part in walk_scope(hook)):
        return None
    if any(_is_kept(facts, part, attribute) for part in walk(hook)):
        return None
    return Repair(True, (Change(body[-1], f"self.{attribute}.clear()", "after"),))


def _is_kept(facts: ModuleFacts, node: cst.CSTNode, attribute: str) -> bool:
    """``self.last = self.x``: the same list under another name."""
    return isinstance(node, cst.Assign) and _is_own(facts, node.value, attribute)
