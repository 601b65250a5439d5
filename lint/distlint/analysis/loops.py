"""Loops that train and loops that evaluate, told by what they call."""

from __future__ import annotations

import ast
import re

from distlint.analysis.events import Event
from distlint.nodes import contains, within

_EVALUATES = re.compile("eval|valid|test|score|infer|predict")
_FREEZES = frozenset({"eval", "inference_mode", "no_grad"})


def called(node: ast.AST) -> set[str]:
    """Return the last parts of the names that are called, or that decorate, in a statement."""
    found = set()
    for each in ast.walk(node):
        parts = [each.func] if isinstance(each, ast.Call) else getattr(each, "decorator_list", ())
        found |= {getattr(part, "attr", getattr(part, "id", "")) for part in parts}
    return found


def around(event: Event) -> ast.AST:
    """Return the innermost loop around a place; without one, the function."""
    loops = within(event.function.node, (ast.For, ast.While))
    holding = [loop for loop in loops if contains(loop, event.node)]
    return holding[-1] if holding else event.function.node


def trains(event: Event) -> bool:
    """True if the loop around a place makes backward passes."""
    return not {"backward", "manual_backward"}.isdisjoint(called(around(event)))


def evaluates(event: Event) -> bool:
    """True if the function around a place evaluates, by its name or since it takes no gradients."""
    is_named = _EVALUATES.search(event.function.name.lower()) is not None
    return not trains(event) and (is_named or not _FREEZES.isdisjoint(called(event.function.node)))
