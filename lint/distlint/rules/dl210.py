"""DL210."""

from __future__ import annotations

import ast
import keyword as python
from collections.abc import Iterator
from functools import partial

import libcst as cst

from distlint.analysis import Analysis
from distlint.analysis.containers import assignments, done_with, is_made_as, name_of, parts_of
from distlint.concrete import ConcreteTree
from distlint.model import Change, Condition, Example, Repair, Report, Rule
from distlint.syntax import ClassNode, dotted

_MODULES = frozenset({"lightning_module", "module"})
_KINDS: dict[type[ast.expr], str] = {ast.List: "ModuleList", ast.Dict: "ModuleDict"}
_MOVES = frozenset({"cuda", "to"})
_REGISTERS = frozenset({"MetricCollection", "ModuleDict", "ModuleList"})
# What a ModuleDict has methods for.
_TAKEN = frozenset({"train", "eval", "type", "clear", "pop", "keys", "items", "values", "update", "training", "float"})
_ON_GPU = Condition("data", "if they are updated with tensors on a GPU")


class MetricInPlainContainer(Rule):
    """Metrics in a list or dict on a module: they are never moved to its device, and nothing resets them.

    A module finds its metrics among its submodules. Those in a plain list or dict are not there: their counts
    stay on the CPU while predictions are on the GPU, checkpoints miss them, and Lightning, which is given the
    object by ``self.log``, cannot find the attribute that it belongs to:

        RuntimeError: Expected all tensors to be on the same device, but found cuda:0 and cpu

    How to fix: ``torch.nn.ModuleList([...])`` or ``torch.nn.ModuleDict({...})``, or one ``MetricCollection``.
    ``--fix`` puts the constructor around a literal.

    Silent: classes that are no modules, metrics that are not of ``torchmetrics`` (or derived from its ``Metric``),
    containers on something else than ``self``, what a ``MetricCollection`` is made of, metrics that the class resets
    and moves itself (``metric.to(self.device)``). For review where it resets them, and may feed them from the CPU.

    When to ignore: the metrics are used on the CPU alone and reset by hand.
    """

    code, name, group = "DL210", "metric-in-plain-container", "wrong value"
    tokens = ((b"torchmetrics", b"pytorch_lightning"),)
    bad = (
        Example(
            """\
import torch
import torchmetrics
from torchmetrics import Accuracy

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.metrics = [Accuracy(task="binary"), torchmetrics.F1Score(task="binary")]
        self.by_name = {"f1": torchmetrics.F1Score(task="binary")}
        self.each = {stage: Accuracy(task="binary") for stage in ("val", "test")}
        metrics = [Accuracy(task="binary") for _ in range(3)]
        self.several = metrics
        self.empty = []
        self.empty.append(Accuracy(task="binary"))
        self.filled = {}
        self.filled["f1"] = torchmetrics.F1Score(task="binary")
""",
            {8: "ModuleList", 9: "ModuleDict", 10: "ModuleDict", 12: "ModuleList", 14: "ModuleList", 16: "ModuleDict"},
        ),
    )
    good = (
        """\
import torch
from torchmetrics import Accuracy, MetricCollection

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.metrics = torch.nn.ModuleList([Accuracy(task="binary")])
        self.by_name = torch.nn.ModuleDict({"accuracy": Accuracy(task="binary")})
        self.collection = MetricCollection({"accuracy": Accuracy(task="binary")})
        self.scores = [Accuracy(task="binary")(x, y) for x, y in self.data]
        self.names = ["accuracy"]
        self.classes = [Accuracy]
        self.added = torch.nn.ModuleDict()
        self.added["accuracy"] = Accuracy(task="binary")

class Report:
    def __init__(self):
        self.metrics = [Accuracy(task="binary")]
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Judge what the modules of this file keep on ``self``."""
        made = {event.node for event in analysis.events("make", "call") if event.result.family == "metric"}
        for owner in analysis.index.all_classes:
            if made and analysis.family(owner) in _MODULES:
                yield from _kept(analysis, owner, made)
                yield from _added(analysis, owner)


def _kept(analysis: Analysis, owner: ClassNode, made: set[ast.expr]) -> Iterator[Report]:
    """Containers of metrics that are assigned to an attribute."""
    pairs = [pair for node in ast.walk(owner.node) for pair in assignments(node)]
    for target, value in pairs:
        name = isinstance(value, ast.Name) and value.id
        container = next((each for local, each in pairs if name and dotted(local) == name), value)
        parts = parts_of(container)
        if dotted(target).startswith("self.") and not made.isdisjoint(parts):
            kind = "ModuleDict" if isinstance(container, ast.Dict | ast.DictComp) else "ModuleList"
            can_wrap = value is container and made.issuperset(parts) and _fits(container)
            yield from _report(analysis, owner, dotted(target), value, kind, can_wrap=can_wrap)


def _added(analysis: Analysis, owner: ClassNode) -> Iterator[Report]:
    """Metrics that are added to a list, or put into a dict."""
    for event in analysis.events("grow", "put"):
        name, value = name_of(event.node), event.args[-1:]
        if event.function.owner is owner and any(each.family == "metric" for each in value):
            kind = next((kind for kind in _KINDS if is_made_as(analysis.index, owner, name, kind)), None)
            if kind is not None and name.startswith("self."):
                yield from _report(analysis, owner, name, event.node, _KINDS[kind])


def _report(
    analysis: Analysis, owner: ClassNode, name: str, node: ast.expr, kind: str, *, can_wrap: bool = False
) -> Iterator[Report]:
    """What to say of metrics, by what the class does with them itself; nothing where that is all they need."""
    lineage = list(analysis.index.lineage(owner))
    done = done_with((each for each in analysis.index.all_functions if each.owner in lineage), name)
    is_moved, is_reset = not _MOVES.isdisjoint(done), "reset" in done
    if not _REGISTERS.isdisjoint(done) or (is_moved and is_reset):
        return
    harm = " and ".join(["never moved to the device"] * (not is_moved) + ["never reset"] * (not is_reset))
    message = f"the metrics in {name} are no submodules, so they are {harm}: use torch.nn.{kind}"
    imported = {full: local for local, full in analysis.index.imports.items()}
    nn = imported.get("torch.nn") or (f"{imported['torch']}.nn" if "torch" in imported else "")
    text = f"{nn}.{kind}({ast.get_source_segment(analysis.index.source, node)})"
    repair = partial(_repair, text) if nn and can_wrap else None
    yield Report(node, message, condition=_ON_GPU if is_reset else None, repair=repair)


def _repair(text: str, tree: ConcreteTree, node: cst.CSTNode) -> Repair:
    return Repair(True, (Change(node, text),))


def _fits(container: ast.expr) -> bool:
    """Whether the constructor will take it: a dict under names that it has no attribute of."""
    keys = container.keys if isinstance(container, ast.Dict) else ()
    names = [str(key.value) if isinstance(key, ast.Constant) else "" for key in keys]
    is_plain = all(name.isidentifier() and name not in _TAKEN and not python.iskeyword(name) for name in names)
    return is_plain and not isinstance(container, ast.Tuple | ast.DictComp)
