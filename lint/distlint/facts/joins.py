"""Functions that join gathered results by example, so that repeats drop out, read with Python's own parser."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distlint.facts.sketch import below

MODULE = ""  # the name of what stands outside of functions and classes
_GATHERING = re.compile(r"(?:^|_)(?:all_?)?gather(?:_|$)", re.IGNORECASE)
_EVALUATORS = frozenset({"CocoEvaluator", "PanopticEvaluator"})  # of DETR and torchvision, as projects copy them
_DICTS = frozenset({"dict", "OrderedDict", "defaultdict"})
_GROWS = frozenset({"append", "extend", "update"})
_KEPT = (ast.Attribute, ast.Dict, ast.List, ast.Name, ast.Subscript, ast.Tuple)
_DEEPEST = 8

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Joiner:
    """What one function or class at the top of a module, or the rest of the module, has to do with results.

    Attributes:
        joins: whether it joins gathered results by example itself.
        calls: what it calls, as it is written.
        bases: of a class, as they are written.
    """

    joins: bool
    calls: frozenset[str]
    bases: frozenset[str] = frozenset()


def read_joiners(tree: ast.Module) -> dict[str, Joiner]:
    """The functions and classes at the top of a module, by name."""
    found: dict[str, Joiner] = {}
    rest: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef):
            bases = node.bases if isinstance(node, ast.ClassDef) else []
            found[node.name] = _joiner([node], frozenset(dotted_text(base) for base in bases))
        else:
            rest.append(node)
    return found | {MODULE: _joiner(rest)}


def _joiner(body: list[ast.stmt], bases: frozenset[str] = frozenset()) -> Joiner:
    calls: set[str] = set()
    functions: list[Function] = []
    stack: list[ast.AST] = [*body]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call):
            calls.add(dotted_text(node.func))
        elif isinstance(node, Function):
            functions.append(node)
        stack.extend(below(node))
    last = {call.rpartition(".")[2] for call in calls}
    joins = not last.isdisjoint(_EVALUATORS)
    if not joins and any(map(_GATHERING.search, last)):
        joins = any(_Results(function).are_joined() for function in functions)
    return Joiner(joins, frozenset(calls - {""}), bases)


def joining(joiners: Mapping[str, Joiner], known: frozenset[str]) -> frozenset[str]:
    """The names of the functions and classes of a module that join results, or call what does.

    Args:
        joiners: of the module.
        known: what joins in other files, as the module calls it.
    """
    found = {name for name, each in joiners.items() if each.joins or each.calls & known}
    for _ in range(_DEEPEST):
        more = {name for name, each in joiners.items() if each.calls & found} - found
        if not more:
            break
        found |= more
    return frozenset(found)


def evaluations(joiners: Mapping[str, Joiner], name: str) -> frozenset[str]:
    """Where a loader made in a function or class is used, as far as the module shows it: there, by callers, below."""
    found = {name}
    for _ in range(_DEEPEST):
        more = {each for each, joiner in joiners.items() if each != MODULE and (joiner.calls | joiner.bases) & found}
        if more <= found:
            break
        found |= more
    return frozenset(found)


def dotted_text(node: ast.expr) -> str:
    """``a.b.c`` of a plain chain of names, else nothing."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


class _Results:
    """What has been gathered from all ranks in one function, and what becomes of it."""

    def __init__(self, function: Function) -> None:
        self._nodes = list(ast.walk(function))
        self._gathered: set[str] = set()
        if any(isinstance(node, ast.Call) and _is_gathering(node) for node in self._nodes):
            while True:
                more = {name for node in self._nodes for name in self._taken(node)} - self._gathered
                if not more:
                    break
                self._gathered |= more

    def are_joined(self) -> bool:
        """Whether what was gathered is put into a dict by example, or made unique."""
        return bool(self._gathered) and any(self._joins(node) for node in self._nodes)

    def _taken(self, node: ast.AST) -> Iterator[str]:
        """Names that get something gathered in a statement or call."""
        if isinstance(node, ast.Assign) and self._is_gathered(node.value):
            yield from (name for target in node.targets for name in _names(target))
        elif isinstance(node, ast.For) and self._is_gathered(node.iter):
            yield from _names(node.target)
        elif isinstance(node, ast.Call):
            func = node.func
            if _is_gathering(node):  # all_gather_object(results, mine)
                yield from (arg.id for arg in node.args if isinstance(arg, ast.Name))
            elif isinstance(func, ast.Attribute) and func.attr in _GROWS and any(map(self._is_gathered, node.args)):
                yield from _names(func.value)

    def _is_gathered(self, node: ast.AST) -> bool:
        return any(
            (isinstance(part, ast.Call) and _is_gathering(part))
            or (isinstance(part, ast.Name) and part.id in self._gathered)
            for part in ast.walk(node)
        )

    def _joins(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return self._makes_unique(node)
        if isinstance(node, ast.DictComp):
            return self._is_by_example(node)
        return isinstance(node, ast.For) and self._is_gathered(node.iter) and self._fills_dict(node)

    def _makes_unique(self, call: ast.Call) -> bool:
        """``np.unique(ids, return_index=True)``, or pandas' ``drop_duplicates``."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted_text(call.func)
        has_index = any(each.arg == "return_index" and _is_true(each.value) for each in call.keywords)
        return (name == "drop_duplicates" or (name == "unique" and has_index)) and self._is_gathered(call)

    def _is_by_example(self, node: ast.DictComp) -> bool:
        """``{k: v for part in gathered for k, v in part.items()}``, ``{each["id"]: each for each in gathered}``."""
        if not self._is_gathered(node.generators[0].iter):
            return False
        if len(node.generators) > 1:
            return isinstance(node.key, ast.Name) and isinstance(node.value, ast.Name)
        return _is_key_of(node.key, node.generators[0].target)

    def _fills_dict(self, loop: ast.For) -> bool:
        """In a loop over what was gathered: ``results.update(part)``, ``results[each["id"]] = each``."""
        for node in (part for each in loop.body for part in ast.walk(each)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
                is_part = len(node.args) == 1 and isinstance(node.args[0], ast.Name) and self._is_gathered(node.args[0])
                if is_part and self._is_dict(node.func.value):
                    return True
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                target = node.targets[0]
                if not isinstance(node.value, _KEPT):  # totals[name] = totals[name] + value
                    continue
                if self._is_dict(target.value) and self._is_example(target.slice, loop):
                    return True
        return False

    def _is_dict(self, node: ast.expr) -> bool:
        """A name that the function makes a dict of."""
        values = (each.value for each in self._nodes if isinstance(each, ast.Assign) and _is_target(node, each))
        return any(
            isinstance(value, ast.Dict) or (isinstance(value, ast.Call) and dotted_text(value.func) in _DICTS)
            for value in values
        )

    def _is_example(self, key: ast.expr, loop: ast.For) -> bool:
        """Whether a key is that of an example: a field of one, or from a loop over a part of what was gathered."""
        if _is_key_of(key, loop.target):
            return True
        inner = (node for each in loop.body for node in ast.walk(each) if isinstance(node, ast.For))
        return any(
            _is_key_of(key, each.target) or (isinstance(key, ast.Name) and key.id in _names(each.target))
            for each in inner
            if self._is_gathered(each.iter) and not _counts(each.iter)
        )


def _is_gathering(call: ast.Call) -> bool:
    """``all_gather``, ``gather_object``, a helper called so; but not ``torch.gather`` and ``x.gather(1, index)``."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted_text(call.func)
    if _GATHERING.search(name) is None or dotted_text(call.func) == "torch.gather":
        return False
    first = call.args[0] if call.args else None
    return not isinstance(first, ast.Constant | ast.UnaryOp) and not any(each.arg == "dim" for each in call.keywords)


def _is_key_of(key: ast.expr, target: ast.expr) -> bool:
    """``each["id"]``, ``each.id`` of the ``each`` of a loop."""
    below = key.value if isinstance(key, ast.Attribute | ast.Subscript) else None
    return isinstance(below, ast.Name) and isinstance(target, ast.Name) and below.id == target.id


def _counts(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted_text(node.func) in ("enumerate", "range")


def _is_target(node: ast.expr, assignment: ast.Assign) -> bool:
    targets = (each.id for each in assignment.targets if isinstance(each, ast.Name))
    return isinstance(node, ast.Name) and node.id in targets


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _names(node: ast.AST) -> set[str]:
    """The names that are bound or filled by a target."""
    if isinstance(node, ast.Subscript | ast.Attribute):
        return _names(node.value)
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
