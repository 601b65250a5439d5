"""Walking and reading LibCST trees without its metadata providers, which cost more than the parse."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache

import libcst as cst

# Fields that hold punctuation, blank space or types: no rule looks there.
_SKIPPED = frozenset(
    {
        "annotation",
        "asynchronous",
        "colon",
        "comma",
        "dot",
        "equal",
        "footer",
        "header",
        "indent",
        "lbrace",
        "lbracket",
        "leading_lines",
        "lines_after_decorators",
        "lpar",
        "newline",
        "operator",
        "rbrace",
        "rbracket",
        "returns",
        "rpar",
        "semicolon",
        "star",
        "trailing_whitespace",
        "type_parameters",
    }
)


_NO_NODES = frozenset({type(None), str, bool, cst.MaybeSentinel})


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    if kind in (cst.Name, cst.SimpleString, cst.Integer, cst.Float):
        return ()
    names = (field.name for field in dataclasses.fields(kind))
    return tuple(name for name in names if name not in _SKIPPED and not name.startswith("whitespace"))


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """The nodes below ``node`` that mean something, in source order."""
    found: list[cst.CSTNode] = []
    for name in _ordered_fields(type(node)):
        value = getattr(node, name)
        kind = type(value)
        if kind is tuple or kind is list:
            found.extend(value)
        elif kind not in _NO_NODES:  # isinstance would be slow: nodes are abstract base classes
            found.append(value)
    return found


@cache
def _ordered_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    names = _fields(kind)
    if kind is cst.IfExp:  # evaluated, and written, in another order than declared
        return ("test", "body", "orelse")
    if kind is cst.FunctionDef:
        return ("decorators", "name", "params", "body")
    if kind is cst.ClassDef:
        return ("decorators", "name", "bases", "keywords", "body")
    return names


def walk(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """``root`` and everything below it, parents first, in source order."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        below = children(node)
        below.reverse()
        stack.extend(below)


def walk_scope(root: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Like ``walk``, but does not enter functions, classes or lambdas below ``root``."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        if node is not root and isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda):
            continue
        below = children(node)
        below.reverse()
        stack.extend(below)


def dotted(node: cst.CSTNode | None) -> str | None:
    """``a.b.c`` of a plain chain of names, else None."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    parts.append(node.value)
    return ".".join(reversed(parts))


def tail(node: cst.CSTNode | None) -> str | None:
    """The last identifier of a name, an attribute, or the call of one."""
    if isinstance(node, cst.Call):
        node = node.func
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else None


def keyword(call: cst.Call, name: str) -> cst.BaseExpression | None:
    """The value of a keyword argument."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg.value
    return None


def container(node: cst.BaseExpression) -> cst.BaseExpression:
    """``x`` of ``x``, ``x[i]`` and ``x[i][j]``."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return node


def positional(call: cst.Call) -> list[cst.BaseExpression]:
    """Plain positional arguments, up to the first ``*args``."""
    found: list[cst.BaseExpression] = []
    for arg in call.args:
        if arg.star:
            break
        if arg.keyword is None:
            found.append(arg.value)
    return found


def argument(call: cst.Call, index: int, name: str) -> cst.BaseExpression | None:
    """An argument by position or else by keyword."""
    given = positional(call)
    return given[index] if index < len(given) else keyword(call, name)


def text_of(node: cst.CSTNode | None) -> str | None:
    """The value of a string literal; the fixed start of an f-string; else None."""
    if isinstance(node, cst.SimpleString):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    if isinstance(node, cst.ConcatenatedString):
        return text_of(node.left)
    if isinstance(node, cst.FormattedString):
        first = node.parts[0] if node.parts else None
        return first.value if isinstance(first, cst.FormattedStringText) else ""
    return None


def is_name(node: cst.CSTNode | None, value: str) -> bool:
    """Whether ``node`` is the bare name ``value``."""
    return isinstance(node, cst.Name) and node.value == value


def names_in(node: cst.CSTNode) -> set[str]:
    """Every identifier in ``node``."""
    return {part.value for part in walk(node) if isinstance(part, cst.Name)}


def number(node: cst.CSTNode | None) -> int | None:
    """The value of an integer literal with an optional minus."""
    if isinstance(node, cst.Integer):
        return int(node.value.replace("_", ""), 0)
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        below = number(node.expression)
        return None if below is None else -below
    return None


def statements(body: cst.CSTNode) -> list[cst.CSTNode]:
    """The statements of a block, one line with semicolons counted as one."""
    if isinstance(body, cst.Module | cst.IndentedBlock):
        return list(body.body)
    return [body]
