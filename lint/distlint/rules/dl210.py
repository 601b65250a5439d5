"""DL210."""

from __future__ import annotations

import keyword as python
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import reaching
from distlint.facts.kept_metrics import handling
from distlint.facts.metric_objects import is_metric_class, is_of_library
from distlint.facts.rewrite import source_at
from distlint.facts.scopes import LOCAL
from distlint.facts.tree import text_of
from distlint.model import Change, Example, Hit, Repair, Rule

if TYPE_CHECKING:
    from distlint.facts import ModuleFacts
    from distlint.facts.classes import ClassFacts

_FROM_TORCH = ("torch", "torch.nn")


class MetricInPlainContainer(Rule):
    """Metrics in a list or dict on a module: they are never moved to its device, and nothing resets them.

    A module finds its metrics among its submodules. Those in a plain list or dict are not there: their counts
    stay on the CPU while predictions are on the GPU, checkpoints miss them, and Lightning, which is given the
    object by ``self.log``, cannot find the attribute that it belongs to:

        RuntimeError: Expected all tensors to be on the same device, but found cuda:0 and cpu

    How to fix: ``torch.nn.ModuleList([...])`` or ``torch.nn.ModuleDict({...})``, or one ``MetricCollection``.
    ``--fix`` puts the constructor around a literal.

    Silent: classes that are no modules, metrics that are not of ``torchmetrics`` (or derived from its ``Metric`` in
    this file), containers on something else than ``self``, what a ``MetricCollection`` is made of. Where the class
    resets them itself, also: metrics that it moves itself (``metric.to(self.device)``) or feeds from the CPU
    (``metric.update(x.cpu(), y.cpu())``), and those of the project's own classes, whose states may be wherever
    their inputs are.

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

    def check(self, facts: ModuleFacts) -> Iterator[Hit]:
        """Judge what the modules of this file keep on ``self``."""
        for info in facts.classes.values():
            if not info.kinds & {"module", "lightning"} or "metric" in info.kinds:
                continue
            for name, values in info.attributes.items():
                for value in values:
                    found = _container(facts, value)
                    harm = None if found is None else _harm(facts, info, name, _metrics(facts, found))
                    if found is not None and harm is not None:
                        yield _hit(facts, value, found, _message(name, harm, _kind(found)))
        for target, value, kind in _additions(facts):
            name, owner = facts.self_attribute(target) or "", facts.owner(target)
            metrics = [value] if isinstance(value, cst.Call) and is_metric_class(facts, value) else []
            harm = None if owner is None else _harm(facts, owner, name, metrics)
            if harm is not None:
                yield Hit(target, _message(name, harm, kind))


def _container(facts: ModuleFacts, value: cst.BaseExpression) -> cst.BaseExpression | None:
    if isinstance(value, cst.Name):
        found = [each.value for each in reaching(facts, value) if not each.steps]
        value = found[0] if len(found) == 1 and found[0] is not None else value
    kinds = cst.List | cst.Dict | cst.Tuple | cst.ListComp | cst.DictComp
    return value if isinstance(value, kinds) else None


def _metrics(facts: ModuleFacts, node: cst.BaseExpression) -> list[cst.Call]:
    """The calls in a container that make its metrics."""
    if isinstance(node, cst.ListComp):
        values = [node.elt]
    elif isinstance(node, cst.DictComp):
        values = [node.value]
    else:
        values = [each.value for each in node.elements] if isinstance(node, cst.List | cst.Tuple | cst.Dict) else []
    return [value for value in values if isinstance(value, cst.Call) and is_metric_class(facts, value)]


def _harm(facts: ModuleFacts, owner: ClassFacts, name: str, metrics: list[cst.Call]) -> str | None:
    """What becomes of the metrics, by what the class does with them itself; None where that may be all they need."""
    if not metrics:
        return None
    done = handling(facts, owner, name)
    if not done.is_reset:
        return "never reset" if done.is_moved else "never moved to the device and never reset"
    is_known = any(is_of_library(facts, each) for each in metrics)  # others may keep what they are given as it is
    return "never moved to the device" if is_known and not done.is_moved and not done.is_fed_from_cpu else None


def _additions(facts: ModuleFacts) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression, str]]:
    """``self.x.append(v)`` and ``self.x[k] = v`` where ``self.x`` was made as a plain list or dict."""
    for call in facts.nodes(cst.Call):
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "append" or len(call.args) != 1:
            continue
        if _is_plain(facts, call.func.value, cst.List):
            yield call.func.value, call.args[0].value, "ModuleList"
    for node in facts.nodes(cst.Assign):
        for target in node.targets:
            if isinstance(target.target, cst.Subscript) and _is_plain(facts, target.target.value, cst.Dict):
                yield target.target.value, node.value, "ModuleDict"


def _is_plain(facts: ModuleFacts, node: cst.BaseExpression, kind: type[cst.CSTNode]) -> bool:
    name, owner = facts.self_attribute(node), facts.owner(node)
    if name is None or owner is None or not owner.kinds & {"module", "lightning"} or "metric" in owner.kinds:
        return False
    values = owner.values(name)
    return bool(values) and all(isinstance(value, kind) for value in values)


def _message(name: str, harm: str, kind: str) -> str:
    return f"the metrics in self.{name} are no submodules, so they are {harm}: use torch.nn.{kind}"


def _kind(container: cst.BaseExpression) -> str:
    return "ModuleDict" if isinstance(container, cst.Dict | cst.DictComp) else "ModuleList"


def _hit(facts: ModuleFacts, value: cst.BaseExpression, container: cst.BaseExpression, message: str) -> Hit:
    prefix = _prefix(facts)
    repair = None
    if value is container and prefix is not None and _is_all_metrics(facts, container):
        repair = Repair(True, (Change(value, f"{prefix}.{_kind(container)}({source_at(facts, value)})"),))
    return Hit(value, message, (), repair)


def _is_all_metrics(facts: ModuleFacts, node: cst.BaseExpression) -> bool:
    """Whether the constructor will take it: metrics alone, under names that no attribute of the dict has."""
    if isinstance(node, cst.ListComp):
        return True
    if isinstance(node, cst.Dict):
        for element in node.elements:
            key = text_of(element.key) if isinstance(element, cst.DictElement) else None
            plain = isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString)
            if not plain or not (key or "").isidentifier() or key in _TAKEN or python.iskeyword(key or ""):
                return False
    elements = node.elements if isinstance(node, cst.List | cst.Dict) else ()
    return bool(elements) and len(_metrics(facts, node)) == len(elements)


_TAKEN = frozenset({"train", "eval", "type", "clear", "pop", "keys", "items", "values", "update", "training", "float"})


def _prefix(facts: ModuleFacts) -> str | None:
    """How this file calls ``torch.nn``, if it imports it."""
    scope = facts.own_scope(facts.module)
    for name, bindings in scope.bindings.items():
        targets = {binding.target for binding in bindings if binding.kind == "import"}
        if targets and targets <= set(_FROM_TORCH) and not name.startswith(LOCAL):
            return f"{name}.nn" if targets == {"torch"} else name
    return None
