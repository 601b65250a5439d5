"""Sequences of collectives as shared decision graphs, and where two of them part.

A sequence is a chain of events that ends. A test with the same outcome on every rank is an ``either``; two
sequences are equal exactly when their numbers are, because every node is made once (as in a binary decision
diagram), and an ``either`` with equal arms is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst

_WORD = re.compile(r"\w+")
_MOST_TESTS = 8  # two to the power of this are tried


@dataclass(frozen=True, eq=False)
class Sequence:
    """What is still to come at some point of a function.

    Attributes:
        number: equal for equal sequences of one ``Sequences``.
        kind: end, event, either or loop.
        label: operation of an event, test of an either, way to end of an end.
        node: the call of an event.
        arms: the ways on: one for an event; then and else for an either; body and rest for a loop.
    """

    number: int
    kind: str
    label: str
    node: cst.CSTNode | None = None
    arms: tuple[Sequence, ...] = ()

    @property
    def rest(self) -> Sequence:
        """What follows an event or a loop."""
        return self.arms[-1]


class Sequences:
    """Makes sequences and gives equal ones equal numbers.

    Args:
        learn: whether the way on after ``if test: raise`` is that of jobs for which the test does not hold.
    """

    def __init__(self, *, learn: bool = True) -> None:
        self._learn = learn
        self._numbers: dict[tuple[object, ...], int] = {}
        self.end = self._make("end", "end")
        self.abort = self._make("end", "abort")  # an exception: the job ends, it does not hang
        self.next_turn = self._make("end", "next turn")
        self.leave_loop = self._make("end", "leave loop")
        self.leave_function = self._make("end", "leave function")  # from within a loop

    def _make(self, kind: str, label: str, node: cst.CSTNode | None = None, *arms: Sequence) -> Sequence:
        key = (kind, label, *(arm.number for arm in arms))
        number = self._numbers.setdefault(key, len(self._numbers))
        return Sequence(number, kind, label, node, arms)

    def event(self, operation: str, node: cst.CSTNode, rest: Sequence) -> Sequence:
        """``operation``, then ``rest``."""
        return self._make("event", operation, node, rest)

    def either(self, test: str, then: Sequence, orelse: Sequence, *, stable: bool) -> Sequence:
        """One of two ways, the same on every rank.

        Args:
            test: its text; equal texts are equal tests.
            then: the way where it holds.
            orelse: the other.
            stable: whether the test keeps its outcome for the rest of the function.
        """
        aborts = self.abort.number in (then.number, orelse.number)
        if stable and (self._learn or not aborts):
            then, orelse = self._restrict(then, test, True), self._restrict(orelse, test, False)
        if then.number == orelse.number or orelse.number == self.abort.number:
            return then
        if then.number == self.abort.number:
            return orelse
        return self._make("either", test, None, then, orelse)

    def loop(self, body: Sequence, rest: Sequence) -> Sequence:
        """``body`` any number of times, then ``rest``."""
        if not has_events(body):
            may_leave = self.leave_function.label in _ends(body)
            goes_on = has_events(rest) or self.next_turn.label in _ends(rest)
            if not (may_leave and goes_on):
                return rest
        return self._make("loop", "", None, body, rest)

    def same(self, first: Sequence, second: Sequence) -> bool:
        """Whether two sequences are equal for every outcome of their tests, wherever the tests stand."""
        if first.number == second.number:
            return True
        tests = sorted({node.label for one in (first, second) for node in visit(one) if node.kind == "either"})
        if not tests or len(tests) > _MOST_TESTS:
            return False
        ways = ((self._restrict(first, tests[0], way), self._restrict(second, tests[0], way)) for way in (True, False))
        return all(self.same(here, there) for here, there in ways)

    def _restrict(self, sequence: Sequence, test: str, outcome: bool) -> Sequence:
        """The sequence given the outcome of a test."""
        done: dict[int, Sequence] = {}

        def restrict(node: Sequence) -> Sequence:
            if id(node) not in done:
                done[id(node)] = self._restrict_one(node, test, outcome, restrict)
            return done[id(node)]

        return restrict(sequence)

    def _restrict_one(
        self, node: Sequence, test: str, outcome: bool, restrict: Callable[[Sequence], Sequence]
    ) -> Sequence:
        if node.kind == "either" and node.label == test:
            return restrict(node.arms[0 if outcome else 1])
        arms = tuple(restrict(arm) for arm in node.arms)
        if all(new is old for new, old in zip(arms, node.arms, strict=True)):
            return node
        if node.kind == "either":
            return self.either(node.label, arms[0], arms[1], stable=False)
        if node.kind == "loop":
            return self.loop(arms[0], arms[1])
        return self._make(node.kind, node.label, node.node, *arms)


def visit(sequence: Sequence, stop: int = -1) -> Iterator[Sequence]:
    """Every node of the graph once, in the order of the program, up to the nodes numbered ``stop``."""
    seen: set[int] = set()
    stack = [sequence]
    while stack:
        node = stack.pop()
        if id(node) in seen or node.number == stop:
            continue
        seen.add(id(node))
        yield node
        stack.extend(reversed(node.arms))


def events_for_callers(sequence: Sequence, arguments: set[str]) -> tuple[Sequence, ...]:
    """The events that a caller may count on, in order.

    Args:
        sequence: what a function does.
        arguments: the function's parameters: where a test asks for one, the way with the fewest events is taken.
    """
    return _events(sequence, arguments, {})


def _events(node: Sequence, arguments: set[str], done: dict[int, tuple[Sequence, ...]]) -> tuple[Sequence, ...]:
    start, found = node, list[Sequence]()
    if id(start) in done:
        return done[id(start)]
    while node.kind in ("event", "loop"):
        found += (node,) if node.kind == "event" else _events(node.arms[0], arguments, done)
        node = node.rest
    if node.kind == "either":
        ways = [_events(arm, arguments, done) for arm in node.arms]
        is_asked = bool(arguments & set(_WORD.findall(node.label)))
        ways.sort(key=len)
        found += ways[0] if is_asked else ways[-1]
    done[id(start)] = tuple(found)
    return done[id(start)]


def _ends(sequence: Sequence) -> set[str]:
    return {node.label for node in visit(sequence) if node.kind == "end"}


def has_events(sequence: Sequence) -> bool:
    """Whether any way through makes a collective."""
    return any(node.kind == "event" for node in visit(sequence))


@dataclass(frozen=True, eq=False)
class Difference:
    """A collective that one kind of rank makes and another does not.

    Attributes:
        event: the collective.
        first: whether it is the first sequence that makes it.
        instead: what the other makes at this place, if anything.
    """

    event: Sequence
    first: bool
    instead: Sequence | None = None


def differences(first: Sequence, second: Sequence) -> list[Difference]:
    """The collectives at which two sequences part, in order; empty when they are equal."""
    found: list[Difference] = []
    _compare(first, second, found, set())
    return found


def _compare(first: Sequence, second: Sequence, found: list[Difference], seen: set[tuple[int, int]]) -> None:
    while first.number != second.number and (first.number, second.number) not in seen:
        seen.add((first.number, second.number))
        alike = first.kind == second.kind and first.label == second.label
        if alike and first.kind == "loop":
            _compare_bodies(first, second, found, seen)
        elif alike and first.kind == "either":
            _compare(first.arms[0], second.arms[0], found, seen)
        elif _comes_to(first, second) or _comes_to(second, first):
            _report(first, second, found)
            return
        elif "either" in (first.kind, second.kind):
            _compare_arms(first, second, found, seen)
            return
        elif not alike or first.kind == "end":
            _report(first, second, found)
            return
        first, second = first.rest, second.rest


def _comes_to(sequence: Sequence, test: Sequence) -> bool:
    """Whether a sequence makes calls of its own and then stands before the test where the other stands already."""
    return (
        sequence.kind == "event"
        and test.kind == "either"
        and any(node.number == test.number for node in visit(sequence))
    )


def _compare_bodies(first: Sequence, second: Sequence, found: list[Difference], seen: set[tuple[int, int]]) -> None:
    before = len(found)
    here, there = first.arms[0], second.arms[0]
    _compare(here, there, found, seen)
    if len(found) == before and here.number != there.number:  # one leaves the loop where the other goes on
        leaves = any(node.label.startswith("leave") for node in visit(here))
        event = _first_event(second if leaves else first)
        if event is not None:
            found.append(Difference(event, not leaves))


def _compare_arms(first: Sequence, second: Sequence, found: list[Difference], seen: set[tuple[int, int]]) -> None:
    inside = second.kind == "either" and first.number in {node.number for node in visit(second)}
    if first.kind == "either" and not inside:
        for arm in first.arms:
            _compare(arm, second, found, seen)
    else:
        for arm in second.arms:
            _compare(first, arm, found, seen)


def _report(first: Sequence, second: Sequence, found: list[Difference]) -> None:
    """Neither is an either, and they are not equal: name what one side has and the other lacks."""
    for one, other, is_first in ((first, second, True), (second, first, False)):
        if any(node.number == other.number for node in visit(one)):
            events = [node for node in visit(one, other.number) if node.kind == "event"]
            found.extend(Difference(event, is_first) for event in events)
            if not events and (event := _first_event(other)) is not None:
                found.append(Difference(event, not is_first))
            return
    here, there = _first_event(first), _first_event(second)
    if here is not None:
        found.append(Difference(here, True, there))
    elif there is not None:
        found.append(Difference(there, False))


def _first_event(sequence: Sequence) -> Sequence | None:
    return next((node for node in visit(sequence) if node.kind == "event"), None)
