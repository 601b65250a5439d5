"""What annotations say: of which class something is an instance."""

from __future__ import annotations

import ast
import sys

from distlint.analysis.state import Facts
from distlint.analysis.value import UNKNOWN_VALUE, Value
from distlint.syntax import ClassNode

_NO_PROJECT = frozenset({*sys.stdlib_module_names, "jaxtyping", "numpy", "torch", "typing_extensions"})


def annotated(facts: Facts, annotation: ast.expr | None) -> Value:
    """Return what an annotation says of a value: the class that it is an instance of, if it is one and no other."""
    node = _plain(annotation)
    name = facts.index.qualify(node) if node is not None else ""
    family = facts.family_of(name) if name else ""
    if family:
        return Value(family=family, instance=True)
    owner = facts.index.classes.get(name.removeprefix(f"{facts.index.name}."))
    if owner is not None:
        return Value(family=facts.family(owner), target=owner, instance=True)
    return Value(name=name, instance=True) if names_class(name) else UNKNOWN_VALUE


def names_class(name: str) -> bool:
    """True if a qualified name is that of a class, as classes are written, of a package that may be the user's own."""
    root, _, _ = name.partition(".")
    return name.rpartition(".")[2][:1].isupper() and root not in _NO_PROJECT


def of_attribute(facts: Facts, owner: ClassNode, name: str) -> Value:
    """Return what the body of a class says of an attribute."""
    return annotated(facts, owner.fields[name]) if name in owner.fields else UNKNOWN_VALUE


def _plain(node: ast.expr | None) -> ast.expr | None:
    """``X`` of ``X``, ``"X"``, ``X | None`` and ``Optional[X]``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return _plain(ast.parse(node.value, mode="eval").body)
        except (SyntaxError, ValueError):
            return None
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value is None:
        return _plain(node.left)
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Optional"):
        return _plain(node.slice)
    return node if isinstance(node, ast.Name | ast.Attribute) else None
