"""What a variable may have been given before a place in a function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import libcst as cst

from distlint.collectives import collective, is_about_world
from distlint.source import Source, dotted, last, object_of, pairs, string

_IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce", "_all_reduce", "all_reduce_"})


class Definition(NamedTuple):
    """One way by which a variable gets what it holds.

    Attributes:
        order: its place in the order of the source.
        node: the statement or expression that binds.
        value: what is bound; None for what a collective has changed in place.
        how: whether it is the value, one of its elements, the value added to what there was, or
            what ranks have brought together.
        element: the place of what is taken, where a tuple is unpacked.
    """

    order: int
    node: cst.CSTNode
    value: cst.BaseExpression | None
    how: Literal["is", "element of", "joins", "reduced"]
    element: int | None = None


class Reaching(NamedTuple):
    """What a variable may have been given.

    Attributes:
        listed: the definitions, the last one first.
        is_complete: whether it is one of these on every way.
    """

    listed: Sequence[Definition]
    is_complete: bool

    @property
    def single(self) -> Definition | None:
        """The only definition there is, or None."""
        return self.listed[0] if len(self.listed) == 1 else None

    @property
    def plain(self) -> list[cst.BaseExpression]:
        """The values that are bound as they are."""
        return [each.value for each in self.listed if each.value and each.how == "is"]


def reaching(
    source: Source, variable: cst.BaseExpression, at: cst.CSTNode | None = None
) -> Reaching:
    """Return what a variable may have been given before a node, or before itself."""
    at = variable if at is None else at
    order = source.order(at)
    found: list[Definition] = []
    for each in reversed(bindings(source, at).get(key_of(variable), ())):
        is_inside = source.is_within(at, each.node) and each.how != "element of"
        if each.order >= order or is_inside or _excludes(source, each.node, at):
            continue
        found.append(each)
        if each.how != "joins" and _dominates(source, each.node, at):
            return Reaching(found, True)
    return Reaching(found, False)


def bindings(source: Source, at: cst.CSTNode) -> dict[str, list[Definition]]:
    """Return all definitions of the function around a node by the variable, in order."""
    scope = source.home(at)
    return source.once("bindings", scope, lambda: _bindings(source, scope))


def _bindings(source: Source, scope: cst.CSTNode) -> dict[str, list[Definition]]:
    known: dict[str, list[Definition]] = {}
    for name, definition in _bind(source, scope):
        if name:
            known.setdefault(name, []).append(definition)
    for listed in known.values():
        listed.sort(key=lambda each: each.order)
    return known


def _bind(source: Source, scope: cst.CSTNode) -> Iterator[tuple[str, Definition]]:
    order = source.order
    for assign in source.below(scope, cst.Assign):
        for each in assign.targets:
            yield from _targets(each.target, assign.value, assign, order(assign))
    for bound in source.below(scope, cst.AnnAssign, cst.NamedExpr):
        if isinstance(bound, cst.AnnAssign | cst.NamedExpr) and bound.value is not None:
            yield from _targets(bound.target, bound.value, bound, order(bound))
    for added in source.below(scope, cst.AugAssign):
        if not isinstance(added.operator, cst.DivideAssign | cst.MultiplyAssign):
            yield key_of(added.target), Definition(order(added), added, added.value, "joins")
    for loop in source.below(scope, cst.For):
        for name in names(loop.target):
            yield name, Definition(order(loop.body) - 1, loop, loop.iter, "element of")
    for call in source.below(scope, cst.Call):
        given = call.args[0].value if call.args else None
        if given is not None and last(call.func) in _IN_PLACE and collective(source, call):
            yield key_of(given), Definition(order(call), call, None, "reduced")
        elif given is not None and last(call.func) in ("append", "extend"):
            yield key_of(object_of(call)), Definition(order(call), call, given, "joins")


def _targets(
    target: cst.BaseExpression, value: cst.BaseExpression, node: cst.CSTNode, order: int
) -> Iterator[tuple[str, Definition]]:
    for left, right in pairs(target, value):
        made = Definition(order, node, right, "is")
        if not isinstance(left, cst.Tuple | cst.List):
            yield key_of(left), made
            continue
        is_after_star = False
        for index, element in enumerate(left.elements):
            is_after_star |= isinstance(element, cst.StarredElement)
            at = None if is_after_star else index
            yield from ((name, made._replace(element=at)) for name in names(element.value))


def _dominates(source: Source, definition: cst.CSTNode, at: cst.CSTNode) -> bool:
    """Return whether every way to a node passes a definition before it."""
    for each in source.ancestors(definition):
        if isinstance(each, cst.FunctionDef | cst.Module):
            return True
        if isinstance(each, cst.IndentedBlock):
            if source.is_within(at, each):
                return True
            if not _always(source, source.parent(each)):
                return False
        if isinstance(each, cst.IfExp | cst.BooleanOperation | cst.Lambda):
            return False
    return True


def _always(source: Source, node: cst.CSTNode | None) -> bool:
    """Return whether a block is run wherever several ranks run."""
    if isinstance(node, cst.With | cst.Try):
        return True
    return isinstance(node, cst.If) and is_about_world(source, node.test)


def _excludes(source: Source, definition: cst.CSTNode, at: cst.CSTNode) -> bool:
    """Return whether a definition is in another arm of a branch around a node."""
    return any(
        source.is_within(at, each.orelse) and source.is_within(definition, each.body)
        for each in source.ancestors(at)
        if isinstance(each, cst.If) and each.orelse is not None
    )


def names(target: cst.CSTNode) -> list[str]:
    """Return the variables that a target binds."""
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, cst.Tuple | cst.List):
        return [name for each in target.elements for name in names(each.value)]
    return names(target.value) if isinstance(target, cst.StarredElement) else []


def comprehended(source: Source, node: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """Return over what a comprehension around a node goes by a variable, or None."""
    for each in source.ancestors(node):
        if isinstance(each, cst.BaseStatement):
            return None
        loop = each.for_in if isinstance(each, cst.BaseComp | cst.DictComp) else None
        while loop is not None:
            if name in names(loop.target) and not source.is_within(node, loop.iter):
                return loop.iter
            loop = loop.inner_for_in
    return None


def constant_key(node: cst.BaseExpression | None) -> str | None:
    """Return the constant string in ``x["key"]``, or None."""
    return string(only_index(node))


def only_index(node: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """Return ``i`` of ``x[i]``, or None."""
    if not isinstance(node, cst.Subscript) or len(node.slice) != 1:
        return None
    index = node.slice[0].slice
    return index.value if isinstance(index, cst.Index) else None


def unsubscripted(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``x`` of ``x[a][b]``."""
    while isinstance(node, cst.Subscript):
        node = node.value
    return node


def key_of(node: cst.BaseExpression | None) -> str:
    """Return by what a variable is known: ``x``, ``self.x`` or ``x[key]``; ``""`` for others."""
    key = constant_key(node)
    if key is not None and isinstance(node, cst.Subscript):
        base = dotted(node.value)
        return f"{base}[{key}]" if base else ""
    return dotted(node)
