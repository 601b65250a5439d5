"""A leader that makes a call, and followers that wait for it in an endless loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.divergence import Divergence
from distlint.facts.tree import children, is_name, number, walk

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts
    from distlint.facts.projection import Projector


def is_followed(facts: ModuleFacts, projector: Projector, found: Divergence) -> bool:
    """Whether the other ranks answer a call however often it is made.

    ``if rank == 0: work(); broadcast(signal, 0) … else: while True: broadcast(signal, 0)``: the loop stands in an arm
    of a test of the rank that the call is not in, of the same function or of the one around it (the leader may
    hand a closure to its optimizer).
    """
    if not isinstance(projector.operations.get(found.call), str):
        return False
    wanted = facts.code(found.call)
    functions = [above for above in facts.ancestors(found.call) if isinstance(above, cst.FunctionDef)]
    for arm in _arms(projector, functions[-1]) if functions else ():
        below = set(walk(arm))
        if found.call in below:
            continue
        loops = (node for node in below if isinstance(node, cst.While) and _is_endless(node.test))
        if any(_first_call(projector, loop.body) == wanted for loop in loops):
            return True
    return False


def _arms(projector: Projector, function: cst.FunctionDef) -> Iterator[cst.CSTNode]:
    """Both ways of every test of the rank."""
    for node in walk(function):
        if isinstance(node, cst.If) and projector.tests.keys(node.test):
            yield node.body
            if node.orelse is not None:
                yield node.orelse


def _is_endless(test: cst.BaseExpression) -> bool:
    return is_name(test, "True") or number(test) == 1


def _first_call(projector: Projector, body: cst.CSTNode) -> str | None:
    """The source of the collective that a loop begins with; None where it is one of a helper."""
    stack = [body]
    while stack:
        node = stack.pop()
        if not projector.is_marked(node) and node is not body:
            continue
        stack.extend(reversed(children(node)))
        if isinstance(node, cst.Call) and node in projector.operations:
            made = isinstance(projector.operations[node], str)
            return projector.facts.code(node) if made else None
    return None
