"""What is below a node of Python's tree."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from typing import TypeVar

_NodeT = TypeVar("_NodeT", bound=ast.AST)


def within(node: ast.AST, kind: type[_NodeT] | tuple[type[_NodeT], ...]) -> Iterator[_NodeT]:
    """Yield what is of some kind of a node and all below it, the outer first; twice as quick as ``ast.walk``."""
    pending: deque[ast.AST] = deque((node,))
    while pending:
        node = pending.popleft()
        if isinstance(node, kind):
            yield node
        for name in node._fields:
            below = getattr(node, name, None)
            if type(below) is list:
                pending.extend(each for each in below if isinstance(each, ast.AST))
            elif isinstance(below, ast.AST):
                pending.append(below)


def contains(node: ast.AST, part: ast.AST) -> bool:
    """True if a node is, or has somewhere below it, another one."""
    return any(each is part for each in ast.walk(node))


def names_in(node: ast.AST) -> set[str]:
    """Return the names that are read or set in a node."""
    return {each.id for each in within(node, ast.Name)}


def names_set(node: ast.AST) -> set[str]:
    """Return the names that get a value in a node."""
    return {each.id for each in within(node, ast.Name) if isinstance(each.ctx, ast.Store)}
