"""What a file defines and imports, read in one pass over its statements."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

Function = ast.FunctionDef | ast.AsyncFunctionDef
Located = ast.expr | ast.stmt | ast.excepthandler | ast.pattern | ast.arg | ast.keyword | ast.alias  # with positions
TRY_STAR = getattr(ast, "TryStar", ast.Try)
_NESTED = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(eq=False, repr=False)  # what it holds leads to the whole file
class ClassNode:
    """A class.

    Attributes:
        name: as written.
        node: its tree.
        module: the file.
        bases: qualified names of the bases, as written where nothing says what they are; "" for no plain name.
        methods: by name; the last definition counts.
    """

    name: str
    node: ast.ClassDef
    module: SyntaxIndex
    bases: tuple[str, ...] = ()
    methods: dict[str, FunctionNode] = field(default_factory=dict)

    @cached_property
    def fields(self) -> dict[str, ast.expr]:
        """The annotations in its body, by name."""
        annotated = (each for each in self.node.body if isinstance(each, ast.AnnAssign))
        return {each.target.id: each.annotation for each in annotated if isinstance(each.target, ast.Name)}


@dataclass(eq=False, repr=False)  # what it holds leads to the whole file
class FunctionNode:
    """A function or method, or the file's own statements (named ``<module>``).

    Attributes:
        name: as written.
        node: its tree; of the file's own statements, the module.
        module: the file.
        owner: the class that it is a method of.
        parent: the function around it.
        is_method: whether it stands in the body of its class.
        local: functions defined inside, by name.
        imports: names that it imports itself.
    """

    name: str
    node: Function | ast.Module
    module: SyntaxIndex
    owner: ClassNode | None = None
    parent: FunctionNode | None = None
    is_method: bool = False
    local: dict[str, FunctionNode] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> list[ast.arg]:
        """The parameters in order, without ``*args`` and ``**options``."""
        if not isinstance(self.node, Function):
            return []
        arguments = self.node.args
        return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]

    @property
    def with_default(self) -> frozenset[str]:
        """The names of the parameters that a call may leave out."""
        if not isinstance(self.node, Function):
            return frozenset()
        arguments = self.node.args
        plain = [*arguments.posonlyargs, *arguments.args]
        last = plain[len(plain) - len(arguments.defaults) :]
        only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        return frozenset(each.arg for each in [*last, *(name for name, default in only if default is not None)])

    @property
    def is_static(self) -> bool:
        """True if it is called without ``self``."""
        return any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in self.decorators)

    @property
    def is_property(self) -> bool:
        """True if it is read like an attribute."""
        return any(dotted(each).rpartition(".")[2] in ("property", "cached_property") for each in self.decorators)

    @property
    def decorators(self) -> Sequence[ast.expr]:
        """The decorators, outermost first."""
        return self.node.decorator_list if isinstance(self.node, Function) else ()


@dataclass(eq=False, repr=False)  # what it holds leads to the whole file
class SyntaxIndex:
    """One file.

    Attributes:
        path: as given.
        name: what full names in it begin with.
        source: the text.
        tree: Python's tree.
        imports: local name to dotted text; relative imports begin with dots.
        targets: everything that is imported anywhere, as dotted text.
        stars: the modules of ``from a import *``.
        functions: at the top level, by name.
        classes: at the top level, by name.
        all_functions: every function in order of the text, after the file's own statements.
        all_classes: every class in order of the text.
    """

    path: str
    name: str
    source: str
    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    targets: list[str] = field(default_factory=list)
    stars: list[str] = field(default_factory=list)
    functions: dict[str, FunctionNode] = field(default_factory=dict)
    classes: dict[str, ClassNode] = field(default_factory=dict)
    all_functions: list[FunctionNode] = field(default_factory=list)
    all_classes: list[ClassNode] = field(default_factory=list)
    _lines: list[bytes] = field(default_factory=list)

    def lineage(self, owner: ClassNode) -> Iterator[ClassNode]:
        """A class and its bases, as far as they are in this file, nearest first."""
        seen: set[str] = set()
        pending = [owner]
        while pending:
            current = pending.pop(0)
            if current.name in seen:
                continue
            seen.add(current.name)
            yield current
            names = (base.removeprefix(f"{self.name}.") for base in current.bases)
            pending += [self.classes[name] for name in names if name in self.classes]

    def line(self, number: int) -> bytes:
        """Return a line of the source, from 1."""
        if not self._lines:
            self._lines.extend(re.split(rb"\r\n|\r|\n", self.source.encode()))
        return self._lines[number - 1]

    def text_of(self, node: Located) -> str:
        """Return the source of a node on one line; of a statement with a body, its first line."""
        first, last = node.lineno, node.end_lineno or node.lineno
        if not isinstance(node, ast.expr) and getattr(node, "body", None):
            last = first
        if first == last == node.end_lineno:
            return " ".join(self.line(first)[node.col_offset : node.end_col_offset].decode(errors="replace").split())
        lines = [self.line(number) for number in range(first, last + 1)]
        if last == node.end_lineno:
            lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(b" ".join(lines).decode(errors="replace").split())

    def qualify(self, node: ast.expr, function: FunctionNode | None = None) -> str:
        """Return the qualified name that an expression stands for, or ""."""
        name = dotted(node)
        head, dot, rest = name.partition(".")
        while function is not None:
            if head in function.imports:
                return function.imports[head] + dot + rest
            function = function.parent
        if head in self.imports:
            return self.imports[head] + dot + rest
        if head in self.functions or head in self.classes:
            return f"{self.name}.{name}"
        return ""


def dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` of such an expression, or ""."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join((node.id, *reversed(parts)))


def last_name(node: ast.expr) -> str:
    """Return the last identifier of a name, or of an attribute of anything, or ""."""
    return node.attr if isinstance(node, ast.Attribute) else dotted(node)


def index_source(source: str, path: str, name: str = "") -> SyntaxIndex:
    """Return the index of a file; raises SyntaxError, ValueError or RecursionError as ``ast.parse`` does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    index = SyntaxIndex(path, name, source, tree)
    _Indexer(index).run()
    return index


Body = tuple[Sequence[ast.stmt], "FunctionNode", "ClassNode | None"]


class _Indexer:
    """Fills an index from the statements of a file; the stack of bodies is explicit, so that depth is no matter."""

    def __init__(self, index: SyntaxIndex) -> None:
        self.index = index

    def run(self) -> None:
        """Read the file."""
        whole = FunctionNode("<module>", self.index.tree, self.index)
        self.index.all_functions.append(whole)
        pending: list[Body] = [(self.index.tree.body, whole, None)]
        while pending:
            body, function, owner = pending.pop()
            for statement in statements(body):
                if isinstance(statement, Function):
                    pending.append(self._function(statement, function, owner))
                elif isinstance(statement, ast.ClassDef):
                    pending.append(self._class(statement, function))
                elif isinstance(statement, ast.Import):
                    self._import(statement, function)
                elif isinstance(statement, ast.ImportFrom):
                    self._import_from(statement, function)
        for each in self.index.all_classes:
            bases = (base.value if isinstance(base, ast.Subscript) else base for base in each.node.bases)
            each.bases = tuple(self.index.qualify(base) or dotted(base) for base in bases)
        self.index.all_functions.sort(key=lambda each: getattr(each.node, "lineno", 0))
        self.index.all_classes.sort(key=lambda each: each.node.lineno)

    def _function(self, node: Function, function: FunctionNode, owner: ClassNode | None) -> Body:
        parent = None if function.name == "<module>" else function
        inner = FunctionNode(node.name, node, self.index, owner or function.owner, parent, owner is not None)
        self.index.all_functions.append(inner)
        if owner is not None:
            owner.methods[node.name] = inner
        elif parent is not None:
            parent.local[node.name] = inner
        else:
            self.index.functions[node.name] = inner
        return node.body, inner, None

    def _class(self, node: ast.ClassDef, function: FunctionNode) -> Body:
        inner = ClassNode(node.name, node, self.index)
        self.index.all_classes.append(inner)
        self.index.classes.setdefault(node.name, inner)
        return node.body, function, inner

    def _import(self, node: ast.Import, function: FunctionNode) -> None:
        for alias in node.names:
            root = alias.name.partition(".")[0]
            self._names(function)[alias.asname or root] = alias.name if alias.asname else root
            self.index.targets.append(alias.name)

    def _import_from(self, node: ast.ImportFrom, function: FunctionNode) -> None:
        base = "." * node.level + (node.module or "")
        dot = "" if base.endswith(".") else "."
        for alias in node.names:
            if alias.name == "*":
                self.index.stars.append(base)
                continue
            full = f"{base}{dot}{alias.name}"
            self._names(function)[alias.asname or alias.name] = full
            self.index.targets.append(full)

    def _names(self, function: FunctionNode) -> dict[str, str]:
        return self.index.imports if function.name == "<module>" else function.imports


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body and of those inside them, but for those of functions and classes."""
    stack = list(reversed(body))
    while stack:
        statement = stack.pop()
        yield statement
        if type(statement) in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
            continue
        for name in reversed(_NESTED):
            stack.extend(reversed(getattr(statement, name, ())))
