"""What a file offers to others and takes from them, read with Python's own parser: it is quicker than a full tree."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from distlint.facts.handed import Handed, read_handed
from distlint.facts.joins import Joiner, read_joiners
from distlint.facts.project import MOVING, ClassSummary
from distlint.facts.releases import LIGHTNING, read_releases
from distlint.facts.trainers import read_devices

HERE = "<here>."
_ELSEWHERE = frozenset({"argparse", "json", "logging", "math", "numpy", "os", "random", "sys", "time", "torch", "tqdm"})
EMPTIERS = frozenset({"clear", "pop", "popitem", "popleft", "remove", "reset"})


@dataclass(frozen=True)
class Outline:
    """The names of one module.

    Attributes:
        imports: what each name imported at module level stands for: dotted, relative imports with their dots.
        targets: everything that is imported anywhere in the file, each once.
        stars: the modules of ``from a import *``.
        functions: functions at module level.
        classes: its classes, their bases as they are written, names without the module.
        has_torch: whether torch is imported.
        devices: what its trainers are made for, see ``facts.trainers``.
        joiners: its functions and classes as far as they call what may be the project's, see ``facts.joins``.
        releases: what it says of Lightning's release, see ``facts.releases``.
        uses_classes: whether it does more than define, or one of its functions names one of its classes.
        places: whether it names what places modules on devices: a trainer, or a wrapper for several processes.
        handed: which classes it hands to what places or pickles their objects.
    """

    imports: dict[str, str] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    stars: tuple[str, ...] = ()
    functions: frozenset[str] = frozenset()
    classes: tuple[ClassSummary, ...] = ()
    has_torch: bool = False
    devices: frozenset[str] = frozenset()
    joiners: Mapping[str, Joiner] = field(default_factory=dict)
    releases: frozenset[str] = frozenset()
    uses_classes: bool = True
    places: bool = False
    handed: Handed = field(default_factory=Handed)

    def full(self, text: str) -> str:
        """A dotted text with what its first name is imported as."""
        head, dot, rest = text.partition(".")
        return self.imports.get(head, HERE + head) + dot + rest


def read_outline(
    tree: ast.Module,
    *,
    may_train: bool = True,
    may_evaluate: bool = True,
    may_hand: bool = True,
    places: bool = False,
) -> Outline:
    """The outline of a parsed module.

    Args:
        tree: the module.
        may_train: whether a trainer may be made in it.
        may_evaluate: whether results may be gathered or evaluated in it.
        may_hand: whether objects may be placed or pickled in it.
        places: whether it names what places modules.
    """
    reader = _Reader()
    reader.read(tree.body, "")
    targets, stars = tuple(dict.fromkeys(reader.targets)), tuple(dict.fromkeys(reader.stars))
    roots = {text.partition(".")[0] for text in (*targets, *stars)}
    has_torch, has_lightning = "torch" in roots, not LIGHTNING.isdisjoint(roots)
    return Outline(
        reader.imports,
        targets,
        stars,
        frozenset(reader.functions),
        tuple(reader.classes),
        has_torch,
        read_devices(tree) if may_train else frozenset(),
        dict(reader.joiners(tree)) if may_evaluate else {},
        read_releases(tree) if has_lightning else frozenset(),
        not has_lightning or _uses_classes(tree),
        places,
        read_handed(tree, reader.full, may_hand=may_hand),
    )


class _Reader:
    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.targets: list[str] = []
        self.stars: list[str] = []
        self.functions: set[str] = set()
        self.classes: list[ClassSummary] = []

    def read(self, body: list[ast.stmt], inside: str) -> None:
        """Enter the definitions and imports of a block, those of nested blocks too."""
        for node in _flat(body):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node, inside)
            elif isinstance(node, ast.ClassDef):
                self._class(node, inside)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if not inside:
                    self.functions.add(node.name)
                self.read(node.body, f"{inside}{node.name}.")
            elif isinstance(node, ast.Assign) and not inside:
                self._alias(node)

    def _import(self, node: ast.Import | ast.ImportFrom, inside: str) -> None:
        prefix = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        joint = "." if prefix and not prefix.endswith(".") else ""
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(prefix)
                continue
            text = f"{prefix}{joint}{alias.name}"
            self.targets.append(text)
            bound = alias.asname or alias.name
            if "." in bound:  # import a.b.c
                bound = text = bound.partition(".")[0]
            if not inside:
                self.imports.setdefault(bound, text)

    def _alias(self, node: ast.Assign) -> None:
        text = dotted(node.value)
        for target in node.targets if text is not None else ():
            if isinstance(target, ast.Name) and text is not None and target.id != text:
                self.imports.setdefault(target.id, self.full(text))

    def full(self, text: str) -> str:
        """A dotted text with what its first name is imported as."""
        head, dot, rest = text.partition(".")
        return self.imports.get(head, HERE + head) + dot + rest

    def joiners(self, tree: ast.Module) -> Iterator[tuple[str, Joiner]]:
        """What may join results; calls of names that are neither imported nor defined here lead nowhere."""
        found = read_joiners(tree)
        for name, each in found.items():
            calls = frozenset(text for text in each.calls if self._may_lead_on(text, found))
            if calls or each.joins:
                yield name, Joiner(each.joins, calls)

    def _may_lead_on(self, text: str, here: Collection[str]) -> bool:
        head = text.partition(".")[0]
        if head in self.imports:
            return self.imports[head].partition(".")[0] not in _ELSEWHERE
        return head in here or (bool(self.stars) and head == text and not hasattr(builtins, head))

    def _class(self, node: ast.ClassDef, inside: str) -> None:
        methods = [each for each in _flat(node.body) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        bases = [dotted(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]
        summary = ClassSummary(
            name=inside + node.name,
            path="",
            line=node.lineno,
            bases=tuple("" if base is None else self.full(base) for base in bases),
            methods=frozenset(method.name for method in methods),
            emptied=frozenset(name for method in methods for name in _emptied(method)),
            moves=bool(bases) and any(_moves(method) for method in methods if method.name != "__init__"),
        )
        self.classes.append(summary)
        self.read(node.body, f"{inside}{node.name}.")


def _uses_classes(tree: ast.Module) -> bool:
    """Whether a module runs something when it is imported or started, or uses its classes outside of them."""
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.Import | ast.ImportFrom):
            continue
        inside = list(ast.walk(node))
        if any(isinstance(each, ast.Name) and each.id in classes for each in inside):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _runs(node, inside):
            return True
    return False


def _runs(node: ast.stmt, inside: list[ast.AST]) -> bool:
    """Whether a statement of a module is more than a constant, or asks how the file was started."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    return any(isinstance(each, ast.Call) or (isinstance(each, ast.Name) and each.id == "__name__") for each in inside)


def dotted(node: ast.expr) -> str | None:
    """``a.b.c`` of a plain chain of names, else None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block and of the ``if``, ``try``, ``with`` and loops in it; not those of definitions."""
    stack = list(reversed(body))
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for part in ("finalbody", "orelse"):
            stack.extend(reversed(getattr(node, part, ())))
        for part in ("handlers", "cases"):
            for arm in reversed(getattr(node, part, ())):
                stack.extend(reversed(arm.body))
        stack.extend(reversed(getattr(node, "body", ())))


def _moves(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MOVING
        for node in ast.walk(method)
    )


def _emptied(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Attributes of ``self`` that a method binds anew, empties or deletes; ``__init__`` makes them."""
    if method.name == "__init__" or not method.args.args:
        return
    receiver = method.args.args[0].arg
    for node in _flat(method.body):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            func = node.value.func
            targets = [func.value] if isinstance(func, ast.Attribute) and func.attr in EMPTIERS else []
        for target in targets:
            yield from _attributes(target, receiver)


def _attributes(target: ast.expr, receiver: str) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _attributes(element, receiver)
    elif isinstance(target, ast.Subscript):
        if isinstance(target.slice, ast.Slice):  # self.x[:] = []
            yield from _attributes(target.value, receiver)
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == receiver:
        yield target.attr
