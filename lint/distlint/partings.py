"""Where ranks stop making the same calls, for the rules that tell of it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from distlint.analysis import Analysis, Event, Guard, Step
from distlint.analysis.events import Branch, Handled, Inlined, Node, bodies
from distlint.analysis.formula import Atom, Constant, atoms, negate
from distlint.analysis.sequences import Divergence, divergences
from distlint.analysis.ways import Visit
from distlint.nodes import within
from distlint.syntax import FunctionNode
from distlint.tracing import Trace, named, way_to

# These carry nothing, so that it does not matter which turn of another rank they meet.
WITHOUT_DATA = frozenset({"barrier", "monitored_barrier", "rendezvous", "wait_for_everyone"})


def waits(step: Step) -> bool:
    """True for a collective of any group, whatever the strategy, but not for what loads the file that was asked for."""
    is_collective = step.effect.kind == "collective" and not step.effect.sharded
    return is_collective and not step.label.startswith("load")


def carries_data(step: Step) -> bool:
    """True for a collective of values: what is empty on some ranks alone is seldom what decides about a barrier."""
    return waits(step) and step.label not in WITHOUT_DATA


def carries_objects(step: Step) -> bool:
    """True for what brings together Python objects, which are each rank's own."""
    return step.effect.kind == "collective" and "object" in step.label


class Made(NamedTuple):
    """A call that makes a collective, itself or in a function that it calls.

    Attributes:
        what: the collective, and the function that it is in.
        event: the call.
        step: the collective.
        trace: the way to it.
    """

    what: str
    event: Event
    step: Step
    trace: tuple[Trace, ...]


def all_made(analysis: Analysis, axis: str = "") -> Iterator[Made]:
    """The calls of a file that make a collective of all ranks, logs with ``sync_dist=True`` counted, in order.

    With an axis: those that make one of the groups along it.
    """

    def counts(step: Step) -> bool:
        return (step.effect.kind == "log" and not axis) or analysis.needs_all(step, axis)

    for function in analysis.index.all_functions:
        for each in made_by(analysis, function, counts):
            if each.event.label != function.name:  # what calls itself tries again
                yield each


def made_by(analysis: Analysis, function: FunctionNode, counts: Callable[[Step], bool]) -> Iterator[Made]:
    """The calls of a function that make a collective each time, in order; of each, the first that it makes."""
    stack: list[Node] = [*reversed(analysis.reports[function].body)]
    while stack:
        node = stack.pop()
        if isinstance(node, Inlined):
            visit = _first(node, counts)
        else:
            visit = Visit(node.label, node, ()) if isinstance(node, Step) and counts(node) else None
            stack += [each for part in reversed(bodies(node)) for each in reversed(part)]
        what, event = named(visit) if visit is not None else ("", None)
        if visit is not None and event is not None:
            yield Made(what, event, visit.step, tuple(way_to(visit)))


def _first(node: Inlined, counts: Callable[[Step], bool]) -> Visit | None:
    """The first step that every call of a function makes: not one that an argument decides about."""
    stack: list[tuple[Node, tuple[Inlined, ...]]] = [(node, ())]
    while stack:
        current, calls = stack.pop()
        if isinstance(current, Step) and counts(current):
            return Visit(current.label, current, calls)
        parts = bodies(current)
        if isinstance(current, Branch):
            if isinstance(current.test, Constant):
                parts = [current.then if current.test.value else current.other]
            elif any(atom.parameter for atom in atoms(current.test)):
                parts = []
        if isinstance(current, Handled):
            parts = [current.body, current.last]
        calls = (*calls, current) if isinstance(current, Inlined) else calls
        stack += [(each, calls) for part in reversed(parts) for each in reversed(part)]
    return None


class Partings:
    """Compares what ranks do in each function of a file.

    Args:
        analysis: the file.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    def find(
        self, is_asked: Callable[[Atom], bool], counts: Callable[[Step], bool]
    ) -> Iterator[tuple[Divergence, str, Event]]:
        """The steps that ranks make only on one side of a test, what they are called, and where this file makes them.

        Each place is told of once, and nothing that the other ranks may answer.

        Args:
            is_asked: see ``divergences``.
            counts: see ``divergences``.
        """
        if self._analysis.is_one_process:
            return
        told: set[int] = set()
        for function in self._analysis.index.all_functions:
            for found in divergences(self._analysis.reports[function].body, is_asked, counts):
                what, event = named(found.visit)
                if event is None or id(event.node) in told:
                    continue  # where ranks part is in another file, which is told there
                if not self._may_be_answered(found, event) and not self._is_followed(found, event):
                    told.add(id(event.node))
                    yield found, what, event

    def _may_be_answered(self, found: Divergence, event: Event) -> bool:
        """Whether the ranks that do not make a call go into code that cannot be seen, and may make it there.

        ``if rank == 0: broadcast(request) … else: server.follow()``, or ``if rank != 0: server.follow(); return``.
        """
        guard = found.visit.guard
        sides = [each.taken for each in event.guards if guard is not None and each.node is guard.node]
        is_over = found.atom.doubt == "batches"  # what is left to do after the last batch
        if not sides or found.instead is not None or is_over:
            return False
        # What is called for what it does, rather than asked.
        done = {
            id(getattr(each, "value", None)) for each in within(event.function.node, (ast.Expr, ast.Assign, ast.Return))
        }
        return any(
            each.node is guard.node and each.taken != sides[0]  # type: ignore[union-attr]
            for unseen in self._analysis.events("opaque")
            if unseen.function is event.function and id(unseen.node) in done
            for each in unseen.guards
        )

    def _is_followed(self, found: Divergence, event: Event) -> bool:
        """Whether the other ranks wait for the call in an endless loop, as followers do for their leader.

        ``if rank == 0: work(); broadcast(signal, 0) … else: while True: broadcast(signal, 0)``, in the same function or
        one around it: the leader may hand a closure to its optimizer.
        """
        if event is not found.visit.step.event or not found.is_around:
            return False
        seen: set[int] = set()
        for each in self._analysis.events("collective"):
            loop = next((guard for guard in each.guards if _is_endless(guard)), None)
            if loop is None or id(loop.node) in seen or not _is_around(each.function, event.function):
                continue
            seen.add(id(loop.node))
            if each.label == event.label and any(_is_opposite(guard, found) for guard in each.guards):
                return True
        return False


def _is_endless(guard: Guard) -> bool:
    return guard.kind == "while" and bool(guard.test.constant)


def _is_opposite(guard: Guard, found: Divergence) -> bool:
    """True if a guard lets in the ranks that do not make a call, and no others."""
    formula = guard.test.formula
    if formula is None:
        return False
    wanted = negate(found.atom) if found.reached else found.atom
    return (formula if guard.taken else negate(formula)) == wanted


def _is_around(outer: FunctionNode, inner: FunctionNode | None) -> bool:
    while inner is not None and inner is not outer:
        inner = inner.parent
    return inner is outer
