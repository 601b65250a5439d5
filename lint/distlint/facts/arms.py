"""With which outcome of a test a node is reached: in an arm of it, or after an arm that leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.comparisons import implies
from distlint.facts.tree import statements

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts


def is_reached_only_if(facts: ModuleFacts, node: cst.CSTNode, says: Callable[[cst.BaseExpression, bool], bool]) -> bool:
    """Whether a node of a function is reached only with an outcome that means what ``says`` reads in a test's part."""
    below = node
    for above in facts.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, cst.If | cst.IfExp):
            outcome = True if below is above.body else False if below is above.orelse else None
            if outcome is not None and implies(above.test, outcome, says):
                return True
        elif isinstance(above, cst.IndentedBlock) and any(
            implies(each.test, False, says) for each in left_before(above, below)
        ):
            return True
        below = above
    return False


def left_before(block: cst.IndentedBlock, below: cst.CSTNode) -> Iterator[cst.If]:
    """The tests before a statement of a block whose arm leaves: what follows is reached with the other outcome."""
    for each in takewhile(lambda each: each is not below, block.body):
        if isinstance(each, cst.If) and any(map(_exits, statements(each.body)[-1:])):
            yield each


def _exits(line: cst.CSTNode) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and isinstance(
        line.body[-1], cst.Return | cst.Raise | cst.Continue
    )
