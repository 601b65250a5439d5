"""What a file offers to others and takes from them: a small summary, read from its syntax alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from distlint.analysis.project import ClassSummary
from distlint.project.handed import Handed, read_handed
from distlint.syntax import ClassNode, FunctionNode, SyntaxIndex, dotted, statements

_EMPTIERS = frozenset({"clear", "pop", "popitem", "popleft", "remove", "reset"})


@dataclass(frozen=True)
class Outline:
    """The names of one module.

    Attributes:
        imports: what a name of the module stands for that is imported or another name of something: dotted text.
        targets: everything that is imported anywhere in the file, each once.
        stars: the modules of ``from a import *``.
        functions: functions at module level.
        classes: its classes with the names that bases have in it, see ``SyntaxIndex.qualify``.
        has_torch: whether it imports torch.
        handed: which classes it hands to what places or pickles their objects.
    """

    imports: dict[str, str] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    stars: tuple[str, ...] = ()
    functions: frozenset[str] = frozenset()
    classes: tuple[ClassSummary, ...] = ()
    has_torch: bool = False
    handed: Handed = field(default_factory=Handed)


def read_outline(index: SyntaxIndex) -> Outline:
    """Return the outline of a file."""
    targets = tuple(dict.fromkeys(index.targets))
    return Outline(
        {**dict(_aliases(index)), **index.imports},
        targets,
        tuple(dict.fromkeys(index.stars)),
        frozenset(index.functions),
        tuple(_summary(index, owner) for owner in index.classes.values()),
        any(text.partition(".")[0] == "torch" for text in targets),
        read_handed(index),
    )


def _aliases(index: SyntaxIndex) -> Iterator[tuple[str, str]]:
    """``Model = models.Net`` of a module."""
    for node in index.tree.body:
        if isinstance(node, ast.Assign) and (full := index.qualify(node.value)):
            for target in node.targets:
                yield dotted(target), full


def _summary(index: SyntaxIndex, owner: ClassNode) -> ClassSummary:
    return ClassSummary(
        name=f"{index.name}.{owner.name}",
        path=index.path,
        line=owner.node.lineno,
        bases=owner.bases,
        methods=frozenset(owner.methods),
        emptied=frozenset(name for method in owner.methods.values() for name in _emptied(method)),
    )


def _emptied(method: FunctionNode) -> Iterator[str]:
    """Attributes of ``self`` that a method binds anew, empties or deletes; ``__init__`` makes them."""
    if method.name == "__init__" or not method.parameters:
        return
    for statement in statements(method.node.body):
        for target in _changed(statement):
            receiver, _, attribute = dotted(target).partition(".")
            if receiver == method.parameters[0].arg and attribute:
                yield attribute


def _changed(statement: ast.stmt) -> Iterator[ast.expr]:
    """What a statement binds, empties or deletes."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign | ast.Delete):
        targets = list(statement.targets)
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        func = statement.value.func
        targets = [func.value] if isinstance(func, ast.Attribute) and func.attr in _EMPTIERS else []
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
            targets += target.elts
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice):  # self.x[:] = []
            targets.append(target.value)
        else:
            yield target
