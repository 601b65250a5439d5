"""Whether ranks that answer a test differently make the same calls in the same order.

The idea is PARCOACH's (Saillard, Carribault, Barthou, 2014): compare the sequences of collectives along both ways
through a test, and tell where they part. Here a way is a choice of answers to all tests, so that two tests of the same
thing go together: a barrier that rank 0 meets early and the others later is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from distlint.analysis.events import Branch, Exit, Handled, Inlined, Loop, Node, Step, bodies
from distlint.analysis.formula import Atom, atoms, is_true
from distlint.analysis.module import matters

_MOST_TESTS = 7  # besides the one in question; ways double with each


class Visit(NamedTuple):
    """A step on a way through a function.

    Attributes:
        label: by which steps are matched.
        step: the step.
        calls: the calls that lead to it, outermost first.
        guard: the branch on the test in question that it depends on.
    """

    label: str
    step: Step
    calls: tuple[Inlined, ...]
    guard: Branch | None


class Way(NamedTuple):
    """One way through a function: what is visited, how it ends, and the last branch that decided about that."""

    visits: list[Visit]
    end: str
    guard: Branch | None


class Divergence(NamedTuple):
    """A step that only one side of a test makes.

    Attributes:
        atom: the test.
        visit: the step.
        reached: whether it is made where the test is true.
        instead: what the other side does at that point, if it does anything.
    """

    atom: Atom
    visit: Visit
    reached: bool
    instead: Visit | None


def divergences(
    body: tuple[Node, ...], is_asked: Callable[[Atom], bool], counts: Callable[[Step], bool]
) -> Iterator[Divergence]:
    """The steps that one side of a test makes and the other does not.

    Args:
        body: of a function.
        is_asked: whether ranks may answer an atom differently.
        counts: whether a step must be made by all.
    """
    if not matters(body):
        return
    relevant = list(dict.fromkeys(_relevant(body)))
    for atom in relevant:
        if not is_asked(atom):
            continue
        seen: set[int] = set()
        for found in _compare(body, atom, [each for each in relevant if each.text != atom.text], counts):
            if id(found.visit.step) not in seen:
                seen.add(id(found.visit.step))
                yield found


def _compare(
    body: tuple[Node, ...], atom: Atom, others: list[Atom], counts: Callable[[Step], bool]
) -> Iterator[Divergence]:
    for answers in _answers(list({each.text for each in others})):
        here, there = (walk(body, {**answers, atom.text: answer}, atom, counts) for answer in (True, False))
        if here.end == "raise" and len(here.visits) <= len(there.visits):
            continue
        if there.end == "raise" and len(there.visits) <= len(here.visits):
            continue
        found = _first_difference(atom, here, there)
        if found is not None:
            yield found


def _first_difference(atom: Atom, here: Way, there: Way) -> Divergence | None:
    for first, second in itertools.zip_longest(here.visits, there.visits):
        if first is not None and second is not None and first.label == second.label:
            continue
        longer = first if first is not None and (second is None or _is_guarded(first)) else second
        assert longer is not None
        other = second if longer is first else first
        way = there if longer is first else here
        guard = longer.guard or (other.guard if other else None) or way.guard
        return Divergence(atom, longer._replace(guard=guard), longer is first, other)
    return None


def _is_guarded(visit: Visit) -> bool:
    return visit.guard is not None


def _answers(texts: list[str]) -> Iterator[dict[str, bool]]:
    """The ways to answer tests; of too many, some are only answered together."""
    some, rest = sorted(texts)[:_MOST_TESTS], sorted(texts)[_MOST_TESTS:]
    for chosen in itertools.product((True, False), repeat=len(some)):
        for answer in (False, True) if rest else (False,):
            yield {**dict(zip(some, chosen, strict=True)), **dict.fromkeys(rest, answer)}


def steps(body: Iterable[Node]) -> Iterator[Step]:
    """The steps of a body at any depth."""
    for node in body:
        if isinstance(node, Step):
            yield node
        for inner in bodies(node):
            yield from steps(inner)


def _relevant(body: Iterable[Node]) -> Iterator[Atom]:
    """The atoms of tests that decide about a step or an exit."""
    for node in body:
        if isinstance(node, Branch):
            if node.then or node.other:
                yield from atoms(node.test)
            yield from _relevant((*node.then, *node.other))
        elif isinstance(node, Loop | Inlined | Handled):
            yield from _relevant(node.body)


def walk(body: tuple[Node, ...], answers: Mapping[str, bool], atom: Atom, counts: Callable[[Step], bool]) -> Way:
    """Return the steps on the way that is given by the answers to all tests."""
    walker = _Walker(answers, atom, counts)
    end = walker.run(body, (), None)
    return Way(walker.visits, end, walker.last)


class _Walker:
    def __init__(self, answers: Mapping[str, bool], atom: Atom, counts: Callable[[Step], bool]) -> None:
        self.answers = answers
        self.atom = atom
        self.counts = counts
        self.visits: list[Visit] = []
        self.last: Branch | None = None

    def run(self, body: tuple[Node, ...], calls: tuple[Inlined, ...], guard: Branch | None) -> str:
        """Visit steps; return how the way ends, "" where it goes on."""
        for node in body:
            end = self._visit(node, calls, guard)
            if end:
                return end
        return ""

    def _visit(self, node: Node, calls: tuple[Inlined, ...], guard: Branch | None) -> str:
        if isinstance(node, Step):
            if self.counts(node):
                self.visits.append(Visit(node.label, node, calls, guard))
            return ""
        if isinstance(node, Exit):
            return node.kind
        if isinstance(node, Branch):
            return self._branch(node, calls, guard)
        if isinstance(node, Loop):
            return self._loop(node, calls, guard)
        if isinstance(node, Inlined):
            end = self.run(node.body, (*calls, node), guard)
            return end if end == "raise" else ""
        return self.run(node.body, calls, guard)

    def _branch(self, node: Branch, calls: tuple[Inlined, ...], guard: Branch | None) -> str:
        is_asked = any(each.text == self.atom.text for each in atoms(node.test))
        arm = node.then if is_true(node.test, self.answers) else node.other
        end = self.run(arm, calls, node if is_asked else guard)
        if is_asked and (end or matters(node.then) or matters(node.other)):
            self.last = node
        return end

    def _loop(self, node: Loop, calls: tuple[Inlined, ...], guard: Branch | None) -> str:
        """One turn; that it is the last one is a step of its own, where others may go on."""
        before = len(self.visits)
        end = self.run(node.body, calls, guard)
        if end == "break" and len(self.visits) > before:
            self.visits.append(self.visits[before]._replace(label="(the last turn)"))
        return end if end in ("return", "raise") else ""
