"""Where the ranks that a test tells apart stop making the same calls, and the test that parts them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from distlint.facts.data_tests import DATA
from distlint.facts.project import CallPlace, FunctionSummary
from distlint.facts.roles import Role, roles
from distlint.facts.sequences import Difference, differences
from distlint.facts.tree import tail, walk_scope

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts
    from distlint.facts.projection import Projector

Region = cst.FunctionDef | cst.Module
Trace = tuple[tuple[cst.CSTNode | CallPlace, str, str], ...]
# Calls that say or end something, and modules that know of no ranks.
_EXITS = (cst.Return, cst.Raise, cst.Continue, cst.Break)


@dataclass(frozen=True)
class Divergence:
    """A call that only some ranks make.

    Attributes:
        call: the call.
        label: what it does.
        guard: the test, or the decorator, that parts the ranks; the call itself where none can be named.
        is_around: whether the call stands inside of the guard's branch, rather than after an early exit.
        role: the ranks that the test picks out.
        by_role: whether it is they who make the call, rather than the others.
        instead: the call that the other ranks make at this place, if they make one.
        instead_label: what that does.
    """

    call: cst.Call
    label: str
    guard: cst.CSTNode
    is_around: bool
    role: Role
    by_role: bool
    instead: cst.CSTNode | None = None
    instead_label: str = ""


def divergences(facts: ModuleFacts, projector: Projector) -> Iterator[Divergence]:
    """Compare what every kind of rank does in each function of the module."""
    for region in projector.regions():
        yield from _compare(facts, projector, region)


def _compare(facts: ModuleFacts, projector: Projector, region: Region) -> Iterator[Divergence]:
    guards = projector.guards(region)
    decorator = projector.decorator_key(region)
    keys = {key for _, found in guards for key in found} | ({decorator[1]} if decorator is not None else set())
    if not keys:
        return
    plain, *others = roles(keys)
    ordinary = projector.project(region, plain)
    reported: set[cst.CSTNode] = set()
    for role in others:
        special = projector.project(region, role)
        if projector.same(special, ordinary) or projector.are_alike(region, role, plain):
            continue
        for difference in differences(special, ordinary):
            call = difference.event.node
            if not isinstance(call, cst.Call) or call in reported:
                continue
            guard, is_around = _find_guard(facts, call, [test for test, found in guards if _decides(found, role)])
            if guard is None:
                guard, is_around = (decorator[0], False) if decorator is not None else (call, True)
            if not is_around and guard in reported:
                continue  # what follows an early exit is reported once, at the first collective
            reported |= {call, guard}
            yield _divergence(call, difference, role, guard, is_around)


def _divergence(call: cst.Call, difference: Difference, role: Role, guard: cst.CSTNode, is_around: bool) -> Divergence:
    other = difference.instead
    return Divergence(
        call,
        difference.event.label,
        guard,
        is_around,
        role,
        difference.first,
        None if other is None else other.node,
        "" if other is None else other.label,
    )


def _decides(keys: set[str], role: Role) -> bool:
    return any(role[key] for key in keys)


def _find_guard(
    facts: ModuleFacts, call: cst.CSTNode, tests: list[cst.BaseExpression]
) -> tuple[cst.CSTNode | None, bool]:
    """The test that lets ranks past ``call``, and whether the call stands inside of its branch."""
    by_owner = {facts.parents[test]: test for test in tests}
    above = [call, *facts.ancestors(call)]
    for node in above:
        if node in by_owner and by_owner[node] not in above:
            return by_owner[node], True
    place = facts.order[call]
    before = [test for test in tests if facts.order[test] < place]
    for test in reversed(before):
        if any(isinstance(node, _EXITS) for node in walk_scope(facts.parents[test])):
            return test, False
    return (before[-1] if before else None), False


def guard_text(facts: ModuleFacts, guard: cst.CSTNode) -> str:
    """A guard as one line of source."""
    if isinstance(guard, cst.Decorator):
        return "@" + facts.code(guard.decorator)
    owner = facts.parents.get(guard)
    prefix = "if " if isinstance(owner, cst.If) else "while " if isinstance(owner, cst.While) else ""
    return prefix + facts.code(guard)


def describe(facts: ModuleFacts, projector: Projector, call: cst.Call, label: str) -> tuple[str, Trace]:
    """What a call does, with the helper that it is inside of, and the way to the call itself."""
    helper = projector.operations.get(call)
    if helper is None or isinstance(helper, str):
        return label, ()
    origin = find_origin(projector, call, label)
    what = f"{label} (inside {tail(call.func)})"
    if origin is None:
        return what, ()
    return what, ((origin, "collective", origin.text if isinstance(origin, CallPlace) else facts.code(origin)),)


def find_origin(projector: Projector, call: cst.Call, label: str) -> cst.Call | CallPlace | None:
    """The call itself, however many helpers deep, in this file or another."""
    seen: set[cst.FunctionDef] = set()
    pending = [call]
    while pending:
        here = pending.pop()
        made = projector.operations.get(here)
        if made == label:
            return here
        if isinstance(made, FunctionSummary) and label in made.collectives:
            return made.calls[made.collectives.index(label)]
        if isinstance(made, cst.FunctionDef) and made not in seen:
            seen.add(made)
            pending += [node for node in walk_scope(made) if isinstance(node, cst.Call)]
    return None


def who(role: Role) -> str:
    """The ranks that a test picks out, in words."""
    key = next(key for key in sorted(role, reverse=True) if role[key])
    if key == "local_rank==0":
        return "local rank 0"
    if key.startswith(DATA):
        return f"a rank where {key.removeprefix(DATA)}"
    if key.startswith("rank==") and key[6:].isdigit():
        return f"rank {key[6:]}"
    return f"a rank with {key}"
