"""A quick look at a file with Python's own parser, to spare the full tree where no rule can have anything to say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

_LEAVES = frozenset({ast.Name, ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal, ast.Load, ast.Store})
_FUNCTIONS = frozenset({ast.FunctionDef, ast.AsyncFunctionDef})


@dataclass(frozen=True)
class SketchedCall:
    """One call.

    Attributes:
        node: the call.
        name: the last identifier of what is called; "" where there is none.
        functions: names of the functions around it, the nearest last.
        is_stored: whether it is part of what is assigned to an attribute.
    """

    node: ast.Call
    name: str
    functions: tuple[str, ...]
    is_stored: bool

    def gives(self, name: str) -> bool:
        """Whether it has a keyword argument of that name."""
        return any(each.arg == name for each in self.node.keywords)


@dataclass(frozen=True)
class Sketch:
    """What rules ask of a file before its tree is made.

    Attributes:
        calls: every call.
        stored: everything assigned to an attribute.
        strings: every string, the parts of f-strings too.
        imported: the last names of what is imported.
        local: names of functions and classes made inside of functions, and of what a lambda is assigned to.
        reads_device_in_init: whether ``__init__`` reads an attribute called ``device``.
    """

    calls: list[SketchedCall] = field(default_factory=list)
    stored: list[ast.expr] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    local: set[str] = field(default_factory=set)
    reads_device_in_init: bool = False

    def is_local_function(self, value: ast.expr) -> bool:
        """Whether something in an expression may be a lambda or a local function or class."""
        nodes = ast.walk(value)
        return any(isinstance(node, ast.Lambda) or getattr(node, "id", None) in self.local for node in nodes)


def sketch(tree: ast.Module) -> Sketch:
    """Look at a parsed file, once."""
    reader = _Reader()
    reader.read(tree)
    return Sketch(reader.calls, reader.stored, reader.strings, reader.imported, reader.local, reader.reads_device)


class _Reader:
    def __init__(self) -> None:
        self.calls: list[SketchedCall] = []
        self.stored: list[ast.expr] = []
        self.strings: list[str] = []
        self.imported: set[str] = set()
        self.local: set[str] = set()
        self.reads_device = False

    def read(self, tree: ast.Module) -> None:
        """Enter every node, with the functions around it, and whether it is stored."""
        stack: list[tuple[ast.AST, tuple[str, ...], bool]] = [(tree, (), False)]
        while stack:
            node, functions, is_stored = stack.pop()
            if isinstance(node, ast.Call):
                self.calls.append(SketchedCall(node, _tail(node.func), functions, is_stored))
            elif isinstance(node, ast.Attribute):
                self.reads_device = self.reads_device or (node.attr == "device" and "__init__" in functions)
            elif isinstance(node, ast.Constant):
                if isinstance(node.value, str):
                    self.strings.append(node.value)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
                is_stored = self._assign(node) or is_stored
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if functions:
                    self.local.add(node.name)
                if type(node) in _FUNCTIONS:
                    functions = (*functions, node.name)
            elif isinstance(node, ast.alias):
                self.imported.add(node.name.rpartition(".")[2])
            stack.extend((each, functions, is_stored) for each in below(node))

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> bool:
        """Enter an assignment; True where an attribute is among its targets."""
        if node.value is None:
            return False
        targets = [part for target in _targets(node) for part in ast.walk(target)]
        if any(isinstance(part, ast.Lambda) for part in ast.walk(node.value)):
            self.local.update(part.id for part in targets if isinstance(part, ast.Name))
        if any(isinstance(part, ast.Attribute) for part in targets):
            self.stored.append(node.value)
            return True
        return False


def _targets(node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _tail(node: ast.expr) -> str:
    while isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def below(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one; names and the like are left out, since nothing is asked of them."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield from (each for each in value if isinstance(each, ast.AST) and type(each) not in _LEAVES)
        elif isinstance(value, ast.AST) and type(value) not in _LEAVES:
            yield value
