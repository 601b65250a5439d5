"""How rules tell of what the interpreter has seen: places, guards, the way to a call."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from distlint.analysis import Analysis, Event, Guard, Value
from distlint.analysis.formula import Atom, Reason, atoms, is_true, negate, picks_one
from distlint.analysis.sequences import Divergence
from distlint.analysis.value import is_set_by_some
from distlint.analysis.ways import Visit
from distlint.model import Condition
from distlint.syntax import dotted

_MOST_TESTS = 8
Trace = tuple[str, int, str, str]


def way_to(visit: Visit) -> Iterator[Trace]:
    """The calls below the first that lead to a step, and the step itself, where that is elsewhere."""
    for call in visit.calls[visit.depth + 1 :]:
        yield call.place.path, call.place.line, "call", call.place.text
    if visit.calls[visit.depth :]:
        place = visit.step.place
        yield place.path, place.line, "collective", place.text


def who(atom: Atom) -> str:
    """The ranks for which a test of the rank is true, in words."""
    kind, is_one, number = atom.text.partition("rank==")
    if not is_one or not picks_one(atom):
        return f"a rank where {atom.text}"
    kind = kind.replace("_", " ")
    return f"the last {kind}rank" if number == "last" else f"{kind}rank {number}"


def message_of(found: Divergence, what: str) -> str:
    """Say which ranks make a collective that others do not, and what happens then."""
    ranks = who(found.atom)
    message = f"only {ranks} reaches this {what}" if found.reached else f"{ranks} never reaches this {what}"
    if found.instead is not None:
        message += f", the others make {found.instead.step.effect.label} instead"
    return f"{message}: {'it waits' if found.reached else 'the others wait'} for ever"


def named(visit: Visit) -> tuple[str, Event | None]:
    """Return what a step is called, and where the function in which ranks part makes it; None in another file."""
    calls = visit.calls[visit.depth :]
    event = calls[0].event if calls else visit.step.event
    name = visit.step.effect.label
    if visit.step.effect.kind == "log":
        name += " with sync_dist=True"
    func = event.node.func if event is not None and isinstance(event.node, ast.Call) else None
    inside = f" (inside {dotted(func).rpartition('.')[2]})" if calls and func is not None else ""
    return name + inside, event


def lets_others_in(found: Divergence, event: Event) -> bool:
    """True if the branch in which ranks part also has a way in for all: ``if is_sharded or rank == 0``."""
    guard = found.visit.guard
    taken = [each.taken for each in event.guards if guard is not None and each.node is guard.node]
    if guard is None or not taken:
        return False
    test = guard.test if taken[0] else negate(guard.test)
    others = sorted({each.text for each in atoms(test)} - {found.atom.text})[:_MOST_TESTS]
    for chosen in itertools.product((True, False), repeat=len(others)):
        answers = dict(zip(others, chosen, strict=True))
        if all(is_true(test, {**answers, found.atom.text: answer}) for answer in (True, False)):
            return True
    return False


def instead_of(found: Divergence) -> Iterator[Trace]:
    """What the other ranks do."""
    if found.instead is not None:
        place = found.instead.step.place
        yield place.path, place.line, "others", place.text


def guard_of(found: Divergence) -> Iterator[Trace]:
    """The test on which ranks part."""
    if found.visit.guard is not None:
        place = found.visit.guard.place
        yield place.path, place.line, "guard", f"if {place.text}"


def if_it_differs(text: str, reason: Reason | None) -> Condition | None:
    """Return what a finding depends on, unless the code proves that ranks answer a test differently."""
    is_proof = reason is None or not reason.unseen
    return None if is_proof else Condition("data", f"if ranks answer `{text}` differently")


def stands_in(visit: Visit, kind: str, word: str) -> bool:
    """True if a step, or a call that leads to it, is under a guard whose source has a word."""
    events = [visit.step.event, *(call.event for call in visit.calls)]
    guards = [(event, guard) for event in events if event is not None for guard in event.guards]
    return any(
        guard.kind == kind and word in event.function.module.text_of(guard.node).lower() for event, guard in guards
    )


def model_of(visit: Visit) -> Value:
    """Return what a forward pass is made of: where a helper is given the model, what this way gives it."""
    event = visit.step.event
    assert event is not None
    value, called, function = event.receiver, event.node, event.function
    expression: ast.expr | None = called.func if isinstance(called, ast.Call) else None
    for call in reversed(visit.calls):
        names = [each.arg for each in function.parameters]
        if call.event is None or not isinstance(expression, ast.Name) or expression.id not in names:
            break
        position = names.index(expression.id)
        value = call.event.argument(position, expression.id) or value
        bound = len(call.event.args) - len(call.event.node.args) if isinstance(call.event.node, ast.Call) else 0
        expression = call.event.argument_node(position - bound, expression.id)
        function = call.event.function
        if not value.wrapped:
            break
    return value


def of_guard(analysis: Analysis, guard: Guard) -> Trace:
    """The trace of a guard of an event."""
    words = {"while": "while", "for": "for … in"}
    text = analysis.index.text_of(guard.node)
    is_loop = guard.kind in words
    word = words.get(guard.kind, "if" if isinstance(guard.node, ast.expr) else "")
    return analysis.index.path, guard.node.lineno, "loop" if is_loop else "guard", f"{word} {text}".strip()


def data_of(analysis: Analysis, value: Value) -> tuple[Trace, ...]:
    """Where this rank's data enter a value."""
    reason = value.reason
    return ((analysis.index.path, reason.line, "data", reason.text),) if reason is not None and reason.line else ()


def because(analysis: Analysis, guard: Guard) -> Iterator[Trace]:
    """Where ranks begin to disagree about a test, if that is another line than the test."""
    reason = guard.test.reason
    if reason is not None and reason.line and reason.line != guard.node.lineno:
        yield analysis.index.path, reason.line, "cause", reason.text


def is_by_rank(event: Event | None) -> bool:
    """True if a test of the rank decides directly whether a place is reached."""
    guards = event.guards if event is not None else ()
    kinds = ("branch", "and", "decorator", "exit return", "exit continue", "exit break")
    return any(each.kind in kinds and each.test.is_rank and not is_set_by_some(each.test) for each in guards)


def is_to_fail(event: Event) -> bool:
    """True if a call stands where a test expects an error: what it returns is nobody's concern."""
    contexts = (guard.node.func for guard in event.guards if guard.kind == "with" and isinstance(guard.node, ast.Call))
    return any(dotted(each).rpartition(".")[2] in ("raises", "assertRaises", "assertRaisesRegex") for each in contexts)
