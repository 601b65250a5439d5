"""Which values are made from one rank's share of the data, and differ between ranks.

What cannot be known counts as the same everywhere: the answer is a place that the value comes from, or None.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.flow import Definition, reaching
from distlint.facts.invariance import is_filled, is_gathered, is_gathering
from distlint.facts.metric_objects import metric_object, receiver
from distlint.facts.stages import HOOKS, Stages, arguments
from distlint.facts.tree import container, is_name, keyword, positional, tail, text_of

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_DEEPEST = 14
# Parameters of hooks that are the same on every rank.
_SAME = frozenset(
    {"self", "trainer", "pl_module", "batch_idx", "batch_nb", "batch_index", "dataloader_idx", "dataloader_id", "idx"}
)
# What a value says of itself that is no part of the data: sizes are (nearly) the same, and seldom what is meant.
_SHAPES = frozenset({"shape", "device", "dtype", "ndim", "size", "numel", "batch_size", "num_graphs", "keys", "type"})
_COUNTS = frozenset({"len", "range", "isinstance", "type", "id", "str", "repr", "hasattr"})
# Names by which code says that a value is that of all ranks.
_BROUGHT_TOGETHER = frozenset({"reduced", "gathered", "synced", "synchronized", "allgathered", "allreduced"})
_GROWS = frozenset({"append", "extend", "add", "appendleft", "insert"})


class Shares:
    """Answers for the expressions of one module.

    Args:
        facts: the module.
    """

    def __init__(self, facts: ModuleFacts) -> None:
        self._facts = facts
        self._stages = Stages(facts, HOOKS)
        self._stored: dict[cst.ClassDef, dict[str, list[cst.BaseExpression]]] = {}
        self._fills: dict[cst.FunctionDef | None, dict[str, list[cst.BaseExpression]]] | None = None
        self._known: dict[cst.BaseExpression, cst.CSTNode | None] = {}

    def source(self, node: cst.BaseExpression | None, depth: int = 0) -> cst.CSTNode | None:
        """Where a rank's own data enter a value; None when that is not known to happen."""
        if node is None or depth > _DEEPEST:
            return None
        if node not in self._known:
            self._known[node] = None  # what a value owes to itself adds nothing
            self._known[node] = self._find(node, depth + 1)
        return self._known[node]

    def _any(self, nodes: Iterator[cst.BaseExpression | None], depth: int) -> cst.CSTNode | None:
        return next((found for each in nodes if (found := self.source(each, depth)) is not None), None)

    def _find(self, node: cst.BaseExpression, depth: int) -> cst.CSTNode | None:
        if isinstance(node, cst.Name):
            return self._name(node, depth)
        if isinstance(node, cst.Attribute):
            return self._attribute(node, depth)
        if isinstance(node, cst.Call):
            return self._call(node, depth)
        if isinstance(node, cst.Subscript):
            return self.source(node.value, depth)
        if isinstance(node, cst.UnaryOperation):
            return self.source(node.expression, depth)
        if isinstance(node, cst.BinaryOperation):
            return self._any(iter((node.left, node.right)), depth)
        if isinstance(node, cst.IfExp):
            return self._any(iter((node.body, node.orelse)), depth)
        if isinstance(node, cst.NamedExpr):
            return self.source(node.value, depth)
        if isinstance(node, cst.Comparison):
            parts = (node.left, *(each.comparator for each in node.comparisons))
            return self._any(iter(parts), depth)
        if isinstance(node, cst.Tuple | cst.List | cst.Set | cst.Dict):
            return self._any((element.value for element in node.elements if element is not None), depth)
        if isinstance(node, cst.ListComp | cst.GeneratorExp | cst.SetComp):
            return self.source(node.elt, depth)
        return self.source(node.value, depth) if isinstance(node, cst.DictComp) else None

    def _name(self, node: cst.Name, depth: int) -> cst.CSTNode | None:
        if _BROUGHT_TOGETHER & set(node.value.lower().split("_")) or is_filled(self._facts, node):
            return None
        for definition in reaching(self._facts, node):
            found = self._definition(definition, depth)
            if found is not None:
                return found
        return self._any(iter(self._filled_into(node)), depth)

    def _definition(self, definition: Definition, depth: int) -> cst.CSTNode | None:
        if isinstance(definition.node, cst.Param):
            return self._parameter(definition.node, depth)
        if isinstance(definition.node, cst.AugAssign):
            return self.source(definition.node.value, depth)
        value = definition.value
        if definition.steps[:1] == ("iter",) and isinstance(value, cst.Call):
            value = self._iterated(value, definition.steps[1:])
        return None if value is None else self.source(value, depth)

    def _iterated(self, call: cst.Call, steps: tuple[int | str, ...]) -> cst.BaseExpression | None:
        """What a name of a loop over ``enumerate``, ``zip`` or ``items`` runs over; nothing for counters and keys."""
        first = steps[0] if steps else None
        name, given = tail(call.func), positional(call)
        if name == "enumerate" and given:
            return None if first == 0 else given[0]
        if name == "zip" and isinstance(first, int) and first < len(given):
            return given[first]
        if name in ("items", "keys") and (first == 0 or name == "keys"):
            return None
        return call

    def _parameter(self, param: cst.Param, depth: int) -> cst.CSTNode | None:
        function = self._facts.function_of(param)
        name = param.name.value
        if function is None or name in _SAME or self._is_of_callback(function, param):
            return None
        if function.name.value in HOOKS:
            return None if self._is_gathered_before(function) else param
        for way in self._stages.ways(function):
            for bound, value in arguments(self._facts, function, way.call) if way.call is not None else ():
                if bound == name and (found := self.source(value, depth)) is not None:
                    return found
        return None

    def _is_of_callback(self, function: cst.FunctionDef, param: cst.Param) -> bool:
        """The trainer or the module that a hook of a callback is given, by place or annotation, whatever its name."""
        annotation = param.annotation.annotation if param.annotation is not None else None
        said = (text_of(annotation) or tail(annotation) or "").rpartition(".")[2]
        if said in ("Trainer", "LightningModule"):
            return True
        owner = self._facts.class_of(function)
        is_hook = owner is not None and "callback" in owner.kinds and "lightning" not in owner.kinds
        return is_hook and function.name.value.startswith("on_") and param in function.params.params[1:3]

    def _is_gathered_before(self, hook: cst.FunctionDef) -> bool:
        """Whether the step returns gathered values to this end of an epoch."""
        owner, name = self._facts.class_of(hook), hook.name.value.removeprefix("on_")
        if owner is None or not name.endswith("_epoch_end"):
            return False
        steps = (owner.method(name.removesuffix("_epoch_end") + end) for end in ("_step", "_step_end"))
        values = [value for step in steps if step is not None for value in self._facts.returns(step)]
        return any(is_gathered(self._facts, value) for value in values)

    def _attribute(self, node: cst.Attribute, depth: int) -> cst.CSTNode | None:
        if _is_size(node.attr.value):
            return None
        name, owner = self._facts.self_attribute(node), self._facts.owner(node)
        if name is None:
            return self.source(node.value, depth)
        if owner is None or self._is_reduced(name):
            return None
        found = self._any(iter(self._stores(owner.node).get(name, ())), depth)
        below = owner.bases if found is None else []
        return found or next(
            (place for base in below if (place := self._any(iter(self._stores(base.node).get(name, ())), depth))), None
        )

    def _is_reduced(self, attribute: str) -> bool:
        """``all_reduce(self.total)``: the collective writes into the attribute."""
        first = (positional(call)[:1] for call in self._facts.gathering)
        return any(self._facts.self_attribute(value) == attribute for given in first for value in given)

    def _call(self, node: cst.Call, depth: int) -> cst.CSTNode | None:
        name, given = tail(node.func) or "", [arg.value for arg in node.args]
        if name in _COUNTS or _is_size(name) or is_gathering(self._facts, node):
            return None
        if name == "compute" and not given:
            return None
        made = metric_object(self._facts, node.func)
        if made is not None and is_name(keyword(made, "dist_sync_on_step"), "True"):
            return None
        function = self._facts.local_function(node)
        if function is not None:
            values = self._facts.returns(function)
            if any(is_gathered(self._facts, value) for value in values):
                return None
            return self._any(iter(given), depth) or self._any(iter(values), depth + 2)
        return self._any(iter((*given, receiver(node))), depth)

    def _stores(self, owner: cst.ClassDef) -> dict[str, list[cst.BaseExpression]]:
        """What the methods of a class put into attributes of ``self``."""
        if owner not in self._stored:
            found = self._stored[owner] = {}
            for node in self._facts.classes[owner].body():
                for target, value in _puts(node):
                    name = self._facts.self_attribute(target)
                    if name is not None:
                        found.setdefault(name, []).append(value)
        return self._stored[owner]

    def _filled_into(self, name: cst.Name) -> list[cst.BaseExpression]:
        """What is put into a local container before a use of it."""
        if self._fills is None:
            self._fills = {}
            for node in (*self._facts.nodes(cst.Assign), *self._facts.nodes(cst.Call)):
                is_put = not isinstance(node, cst.Assign) or _is_item(node)
                for target, value in _puts(node) if is_put else ():
                    if isinstance(target, cst.Name):
                        here = self._fills.setdefault(self._facts.function_of(node), {})
                        here.setdefault(target.value, []).append(value)
        return self._fills.get(self._facts.function_of(name), {}).get(name.value, [])


def _is_size(name: str) -> bool:
    return name in _SHAPES or name.startswith(("num_", "n_"))


def _is_item(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Assign) and any(isinstance(each.target, cst.Subscript) for each in node.targets)


def _puts(node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """``x = v``, ``x += v``, ``x[k] = v``, ``x.append(v)``, ``x[k].append(v)``: the base of the target, and ``v``."""
    if isinstance(node, cst.Assign):
        for target in node.targets:
            yield container(target.target), node.value
    elif isinstance(node, cst.AugAssign | cst.AnnAssign) and node.value is not None:
        yield container(node.target), node.value
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _GROWS:
        for arg in node.args[-1:]:
            yield container(node.func.value), arg.value
