"""Lists and dicts that functions and classes fill: what they are made as, what grows, and what is emptied."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from distlint.api import unbound
from distlint.syntax import ClassNode, FunctionNode, SyntaxIndex, dotted

if TYPE_CHECKING:
    from distlint.analysis.events import Event
    from distlint.analysis.module import Analysis

EMPTIERS = frozenset({"clear", "pop", "popitem", "popleft", "remove"})
# Bases that keep nothing of their subclasses' lists, by the package they come from.
_FRAMEWORKS = ("lightning.", "pytorch_lightning.", "torch.nn.", "abc.", "object", "typing.", "torchmetrics.")
_ANY = "*"
_EMPTYING_WORDS = ("clear", "empty", "flush", "free", "reset")
_GIVES_NUMBERS = frozenset({"float", "int", "item", "len", "perf_counter", "range", "round", "str", "time", "tolist"})
_NUMBERS = frozenset({"batch_idx", "current_epoch", "global_step"})
_DEEPEST = 4
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def name_of(node: ast.expr) -> str:
    """Return ``self.x`` of that, of an item of it, and of a call of a method of either."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return dotted(node)


def is_small(event: Event) -> bool:
    """True if what is added to a list is a number or text, or a list of them: a history that one may keep."""
    call = event.node
    return isinstance(call, ast.Call) and bool(call.args) and _is_number(call.args[-1])


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
        return name in _GIVES_NUMBERS
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.Dict | ast.List | ast.Tuple):
        return all(map(_is_number, parts_of(node)))
    return isinstance(node, ast.Constant | ast.JoinedStr) or dotted(node).rpartition(".")[2] in _NUMBERS


def mentions(node: ast.AST, *names: str) -> bool:
    """True if one of some dotted names is read in an expression or statement."""
    return any(isinstance(each, ast.Name | ast.Attribute) and dotted(each) in names for each in ast.walk(node))


def assigned(index: SyntaxIndex, owner: ClassNode, name: str) -> list[ast.expr]:
    """Return what a class, and its bases in the file, assign to ``self.x``."""
    methods = (method.node for each in index.lineage(owner) for method in each.methods.values())
    pairs = (pair for method in methods for node in ast.walk(method) for pair in assignments(node))
    return [value for target, value in pairs if dotted(target) == name]


def assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment with their values, one by one where a tuple is assigned to a tuple."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if value is None:
        return
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:  # type: ignore[attr-defined]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            yield from zip(target.elts, value.elts, strict=True)
        else:
            yield target, value


def behind(function: FunctionNode, node: ast.expr) -> list[ast.AST]:
    """Return the parts of an expression, and of what the function assigns to names in it, wherever that is."""
    pairs = [pair for each in ast.walk(function.node) for pair in assignments(each)]
    found, pending, seen = list[ast.AST](), [node], set[str]()
    while pending:
        parts = list(ast.walk(pending.pop()))
        found += parts
        fresh = {part.id for part in parts if isinstance(part, ast.Name)} - seen
        seen |= fresh
        pending += [value for target, value in pairs if isinstance(target, ast.Name) and target.id in fresh]
    return found


def is_made_as(index: SyntaxIndex, owner: ClassNode, name: str, kind: type[ast.expr]) -> bool:
    """True if a class makes ``self.x`` as such a literal, and as nothing else."""
    values = assigned(index, owner, name)
    return bool(values) and all(isinstance(value, kind) for value in values)


def done_with(index: SyntaxIndex, owner: ClassNode, name: str) -> set[str]:
    """Return the methods that a class calls on what is in ``self.x``, and the functions that it hands that to."""
    found = set()
    for method in (method for each in index.lineage(owner) for method in each.methods.values()):
        names, nodes = {name}, list(ast.walk(method.node))
        pairs = [pair for node in nodes for pair in (*assignments(node), *_turns(node))]
        for _ in range(_DEEPEST):
            held = (target for target, value in pairs if mentions(value, *names))
            names |= {each.id for target in held for each in ast.walk(target) if isinstance(each, ast.Name)} - {"self"}
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and mentions(call.func.value, *names):
                found.add(call.func.attr)
            if any(mentions(arg, *names) for arg in call.args):
                found.add(call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func))
    return found


def _turns(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The target of a loop with what it runs over."""
    if isinstance(node, ast.For | ast.comprehension):
        yield node.target, node.iter


def parts_of(container: ast.expr) -> list[ast.expr]:
    """Return what is in a list or dict that is written out; of a comprehension, what each part is."""
    if isinstance(container, ast.ListComp):
        return [container.elt]
    if isinstance(container, ast.DictComp):
        return [container.value]
    if isinstance(container, ast.Dict):
        return container.values
    return container.elts if isinstance(container, ast.List | ast.Tuple) else []


def is_list(values: list[ast.expr]) -> bool:
    """True if all values are lists, or dicts of lists."""
    return bool(values) and all(map(_makes_list, values))


def _makes_list(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict | ast.DictComp):
        return is_list(parts_of(value))
    if isinstance(value, ast.Call):
        name = dotted(value.func).rpartition(".")[2]
        return name == "list" or (name == "defaultdict" and [*map(dotted, value.args)] == ["list"])
    return isinstance(value, ast.List | ast.ListComp)


class Emptied:
    """Which attributes something empties, deletes, binds anew outside of ``__init__``, or hands to a function.

    Args:
        analysis: the file; attributes of any object count, and those of bases in other files.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._index, self._project = analysis.index, analysis.project

    @cached_property
    def _here(self) -> set[str]:
        functions = self._index.all_functions
        own = {function.name for function in functions}
        return {name for function in functions for name in _Emptying(function).names(own)}

    def has(self, owner: ClassNode, name: str) -> bool:
        """True if something empties ``self.x`` of a class."""
        attribute = name.rpartition(".")[2]
        above = (found for base in self._bases(owner) for found in self._project.ancestors(base))
        return not {attribute, _ANY}.isdisjoint(self._here) or any(attribute in found.emptied for found in above)

    def sees_bases(self, owner: ClassNode) -> bool:
        """True if every base class in another file is known, or a framework's."""
        unknown = (base for base in self._bases(owner) if not (unbound(base) or base).startswith(_FRAMEWORKS))
        found = map(self._project.find_class, unknown)
        return all(each is not None and each.known for each in found)

    def _bases(self, owner: ClassNode) -> Iterator[str]:
        for each in self._index.lineage(owner):
            yield from (
                base for base in each.bases if base.removeprefix(f"{self._index.name}.") not in self._index.classes
            )


class _Emptying:
    """What one function empties."""

    def __init__(self, function: FunctionNode) -> None:
        self._is_new = function.name == "__init__"
        self._nodes = list(_walk(function.node))
        self._meanings: dict[str, list[ast.expr]] = {}
        for node in self._nodes:
            for target, value in (*_turns(node), *assignments(node)):
                for each in ast.walk(target):
                    if isinstance(each, ast.Name):
                        self._meanings.setdefault(each.id, []).append(value)

    def names(self, own: set[str]) -> Iterator[str]:
        """The attributes; ``own`` are the functions of the file."""
        for node in self._nodes:
            places: list[ast.expr] = []
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
                if name in ("setattr", "delattr"):
                    yield _constant(node)
                elif isinstance(node.func, ast.Attribute) and name in EMPTIERS:
                    places = [node.func.value]
                elif name in own or any(word in name for word in _EMPTYING_WORDS):
                    places = node.args
            elif isinstance(node, ast.Delete):
                places = node.targets
            elif not self._is_new:
                places = [target for target, _ in assignments(node) if not isinstance(target, ast.Name)]
            for place in places:
                yield from self._attributes(place)

    def _attributes(self, place: ast.expr) -> Iterator[str]:
        """The attributes that an expression may stand for, or be an item of."""
        pending, seen = [place], set[str]()
        while pending:
            node = pending.pop()
            if isinstance(node, ast.Attribute):
                yield node.attr
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # self.parts.values()
                pending.append(node.func.value)
            elif isinstance(node, ast.Call) and dotted(node.func) == "getattr":
                yield _constant(node)
            elif isinstance(node, ast.Subscript | ast.Starred):
                pending.append(node.value)
            elif isinstance(node, ast.List | ast.Tuple):
                pending += node.elts
            elif isinstance(node, ast.Name) and node.id not in seen:
                seen.add(node.id)
                pending += self._meanings.get(node.id, [])


def _constant(call: ast.Call) -> str:
    """The attribute of ``setattr(x, "name", value)``."""
    name = call.args[1] if len(call.args) > 1 else None
    return str(name.value) if isinstance(name, ast.Constant) else _ANY


def _walk(function: ast.AST) -> Iterator[ast.AST]:
    """What is inside of a function, but for the functions and classes in it."""
    stack = list(ast.iter_child_nodes(function))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _INNER):
            stack += ast.iter_child_nodes(node)
