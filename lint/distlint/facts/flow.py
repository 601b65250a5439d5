"""Which definitions of a local name reach its use: enough data flow to say what a value is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.scopes import target_names
from distlint.facts.tree import statements

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts


@dataclass(frozen=True)
class Definition:
    """A value that a name may have.

    Attributes:
        node: where it is defined.
        value: the expression, None for a parameter or for what we do not follow.
        steps: how the expression is taken apart: indexes for unpacking, ``"iter"`` for a loop.
    """

    node: cst.CSTNode
    value: cst.BaseExpression | None = None
    steps: tuple[int | str, ...] = ()


def reaching(facts: ModuleFacts, use: cst.Name) -> list[Definition]:
    """The definitions that may reach ``use``, nearest first; loops are not followed backwards."""
    if use not in facts.reached:
        facts.reached[use] = _reaching(facts, use)
    return facts.reached[use]


def _reaching(facts: ModuleFacts, use: cst.Name) -> list[Definition]:
    found: list[Definition] = []
    below: cst.CSTNode = use
    for above in facts.ancestors(use):
        if isinstance(above, cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp):
            definition = _of_comprehension(above.for_in, use.value)
            if definition is not None:
                return [definition]
        elif isinstance(above, cst.IndentedBlock | cst.Module):
            if _from_block(statements(above), below, use.value, found):
                return found
        elif isinstance(above, cst.For) and below is above.body:
            bound = list(_of_target(above, above.target, above.iter, use.value, ("iter",)))
            if bound:
                return found + bound
        elif isinstance(above, cst.With) and below is above.body:
            bound = _of_items(above, use.value)
            if bound:
                return found + bound
        elif isinstance(above, cst.FunctionDef | cst.Lambda):
            bindings = facts.own_scope(above).bindings.get(use.value, ())
            params = [binding.node for binding in bindings if binding.kind == "param"]
            if params:
                return [*found, Definition(params[0])]
            if found:
                return found
        below = above
    return found


def _of_items(statement: cst.With, name: str) -> list[Definition]:
    """``with … as name``: what a context manager gives is not followed."""
    targets = (item.asname.name for item in statement.items if item.asname is not None)
    return [Definition(statement) for target in targets for bound, _ in target_names(target) if bound.value == name]


def _of_comprehension(clause: cst.CompFor | None, name: str) -> Definition | None:
    while clause is not None:
        for definition in _of_target(clause, clause.target, clause.iter, name, ("iter",)):
            return definition
        clause = clause.inner_for_in
    return None


def _of_target(
    node: cst.CSTNode,
    target: cst.CSTNode,
    value: cst.BaseExpression,
    name: str,
    steps: tuple[int | str, ...] = (),
) -> Iterator[Definition]:
    for bound, path in target_names(target, steps):
        if bound.value == name:
            yield Definition(node, value, path)


def _from_block(block: list[cst.CSTNode], below: cst.CSTNode, name: str, found: list[Definition]) -> bool:
    """Collect from the statements before ``below``; True when one of them defines the name for sure."""
    place = next((index for index, statement in enumerate(block) if statement is below), len(block))
    for statement in reversed(block[:place]):
        here, certain = _definitions(statement, name)
        found.extend(here)
        if certain:
            return True
    return False


def _definitions(statement: cst.CSTNode, name: str) -> tuple[list[Definition], bool]:
    """Definitions inside one statement, and whether it always makes one."""
    if isinstance(statement, cst.SimpleStatementLine | cst.SimpleStatementSuite):
        for part in reversed(statement.body):
            here = list(_of_small(part, name))
            if here:
                return here, not isinstance(part, cst.AugAssign)
        return [], False
    if isinstance(statement, cst.If):
        first, certain = _of_block(statement.body, name)
        if statement.orelse is None:
            return first, False
        second, other = _definitions(statement.orelse, name)
        return second + first, certain and other
    if isinstance(statement, cst.With):
        inside, certain = _of_block(statement.body, name)
        bound = [] if certain else _of_items(statement, name)
        return inside + bound, certain or bool(bound)
    if isinstance(statement, cst.Else | cst.Finally):
        return _of_block(statement.body, name)
    if isinstance(statement, cst.Match):
        return [each for case in statement.cases for each in _of_block(case.body, name)[0]], False
    if isinstance(statement, cst.Try | cst.TryStar):
        first, certain = _of_block(statement.body, name)
        for handler in statement.handlers:
            first = first + _of_block(handler.body, name)[0]
        return first, certain
    if isinstance(statement, cst.For | cst.While):
        here, _ = _of_block(statement.body, name)
        if isinstance(statement, cst.For):
            here = here + list(_of_target(statement, statement.target, statement.iter, name, ("iter",)))
        return here, False
    return [], False


def _of_block(block: cst.CSTNode, name: str) -> tuple[list[Definition], bool]:
    found: list[Definition] = []
    if isinstance(block, cst.SimpleStatementSuite):
        return _definitions(block, name)
    certain = _from_block(statements(block), block, name, found)
    return found, certain


def _of_small(part: cst.CSTNode, name: str) -> Iterator[Definition]:
    if isinstance(part, cst.Assign):
        for target in part.targets:
            yield from _of_target(part, target.target, part.value, name)
    elif isinstance(part, cst.AnnAssign) and part.value is not None:
        yield from _of_target(part, part.target, part.value, name)
    elif isinstance(part, cst.AugAssign):
        for bound, _ in target_names(part.target):
            if bound.value == name:
                yield Definition(part)
