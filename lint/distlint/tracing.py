"""How rules tell of what the interpreter has seen: places, guards, the way to a call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distlint.analysis import Analysis, Event, Guard
from distlint.analysis.formula import LOCAL_ZERO, Atom
from distlint.analysis.sequences import Divergence, Visit
from distlint.syntax import Located

Trace = tuple[str, int, str, str]


def node_of(visit: Visit) -> Located | None:
    """Return where this file makes a step: the step itself, or the call that leads to it; None in another file."""
    outer = visit.calls[0].event if visit.calls else visit.step.event
    return outer.node if outer is not None else None


def way_to(visit: Visit) -> Iterator[Trace]:
    """The calls below the first that lead to a step, and the step itself, where that is elsewhere."""
    for call in visit.calls[1:]:
        yield call.place.path, call.place.line, "call", call.place.text
    if visit.calls:
        place = visit.step.place
        yield place.path, place.line, "collective", place.text


def who(atom: Atom) -> str:
    """The ranks for which a test of the rank is true, in words."""
    if atom.text == LOCAL_ZERO.text:
        return "local rank 0"
    if atom.text.startswith("rank==") and atom.text[6:].isdigit():
        return f"rank {atom.text[6:]}"
    return f"a rank where {atom.text}"


def guard_of(found: Divergence) -> Iterator[Trace]:
    """The test on which ranks part."""
    if found.visit.guard is not None:
        place = found.visit.guard.place
        yield place.path, place.line, "guard", f"if {place.text}"


def of_guard(analysis: Analysis, guard: Guard) -> Trace:
    """The trace of a guard of an event."""
    words = {"while": "while", "for": "for … in"}
    text = analysis.index.text_of(guard.node)
    is_loop = guard.kind in words
    word = words.get(guard.kind, "if" if isinstance(guard.node, ast.expr) else "")
    return analysis.index.path, guard.node.lineno, "loop" if is_loop else "guard", f"{word} {text}".strip()


def because(analysis: Analysis, guard: Guard) -> Iterator[Trace]:
    """Where ranks begin to disagree about a test, if that is another line than the test."""
    reason = guard.test.reason
    if reason is not None and reason.line and reason.line != guard.node.lineno:
        yield analysis.index.path, reason.line, "cause", reason.text


def has_own_group(event: Event) -> bool:
    """True if a call names the process group that it is for: fewer than all may have to make it."""
    given = event.argument(event.effect.group, "group")
    return given is not None and given.family != "none"
