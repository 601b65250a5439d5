"""Whether ranks that answer a test differently make the same calls in the same order.

The idea is PARCOACH's (Saillard, Carribault, Barthou, 2014): compare the sequences of collectives along both ways
through a test, and tell where they part. Here a way is a choice of answers to all tests, so that two tests of the same
thing go together: a barrier that rank 0 meets early and the others later is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from typing import NamedTuple

from distlint.analysis.events import Branch, Exit, Handled, Inlined, Loop, Node, Step, bodies
from distlint.analysis.formula import LOCAL_ZERO, RANK, UNKNOWN, ZERO, Atom, atoms, is_true
from distlint.analysis.module import matters

LAST_TURN = "(the last turn)"
_EDGES = ("(a loop begins)", "(a loop ends)")
_MOST_TESTS = 7  # besides the one in question; ways double with each


class Visit(NamedTuple):
    """A step on a way through a function.

    Attributes:
        label: by which steps are matched.
        step: the step.
        calls: the calls that lead to it, outermost first.
        guard: the branch on the test in question that it stands in.
        depth: how many of the calls that branch stands in as well.
        loop: the loop that begins or ends here, or whose last turn this is.
    """

    label: str
    step: Step
    calls: tuple[Inlined, ...]
    guard: Branch | None = None
    depth: int = 0
    loop: Loop | None = None


class Way(NamedTuple):
    """One way through a function.

    Attributes:
        visits: the steps.
        end: how it ends.
        guard: the last branch that decided about that, and how many calls it stands in.
    """

    visits: list[Visit]
    end: str
    guard: tuple[Branch | None, int]


class Divergence(NamedTuple):
    """A step that only one side of a test makes.

    Attributes:
        atom: the test.
        visit: the step; its guard is the branch at which ranks part.
        reached: whether it is made where the test is true.
        is_around: whether it stands in that branch, rather than behind an early exit.
        instead: what the other side does at that point, if it does anything.
    """

    atom: Atom
    visit: Visit
    reached: bool
    is_around: bool
    instead: Visit | None = None


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
    asked = [atom for atom in relevant if is_asked(atom)]
    for atom in asked:
        seen: set[int] = set()
        for answers in _answers(atom, relevant, asked):
            for each in _compare(body, atom, answers, counts):
                key = id(each.visit.step) if each.is_around else id(each.visit.guard)
                if key not in seen:
                    seen.add(key)
                    yield each


def _compare(
    body: tuple[Node, ...], atom: Atom, answers: dict[str, bool], counts: Callable[[Step], bool]
) -> Iterator[Divergence]:
    here = walk(body, {**answers, **_also(atom), atom.text: True}, atom, counts)
    there = walk(body, {**answers, atom.text: False}, atom, counts)
    if here.end == "raise" and len(here.visits) <= len(there.visits):
        return
    if there.end == "raise" and len(there.visits) <= len(here.visits):
        return
    for first, second in _unmatched(
        here.visits, there.visits, lambda visit: (id(visit.loop or visit.step), visit.label)
    ):
        for more, other in _unmatched(first, second, lambda visit: visit.label):
            yield from _parted(atom, here, there, more, other)


def _unmatched(
    first: list[Visit], second: list[Visit], key: Callable[[Visit], object]
) -> Iterator[tuple[list[Visit], list[Visit]]]:
    """The stretches in which two sequences differ; what both come to by one way is matched before what looks alike."""
    match = SequenceMatcher(None, list(map(key, first)), list(map(key, second)), False)
    for kind, start, stop, begin, end in match.get_opcodes():
        if kind != "equal":
            yield first[start:stop], second[begin:end]


def _parted(atom: Atom, here: Way, there: Way, first: list[Visit], second: list[Visit]) -> Iterator[Divergence]:
    """What one side makes more than the other at one point; where both make something, one of them is told of."""
    first, second = ([visit for visit in part if visit.label not in _EDGES] for part in (first, second))
    is_first = bool(first) and (not second or first[0].guard is not None)
    more, other, way = (first, second, there) if is_first else (second, first, here)
    instead = other[0] if other else None
    for visit in more:
        if visit.loop is not None and not any(_is_inside(each.step, visit.loop) for each in way.visits):
            continue  # how often those turn who are alone in a loop is their affair
        is_around = visit.guard is not None
        if not is_around:
            parting = (instead.guard, instead.depth) if instead and instead.guard else way.guard
            guard, depth = parting if parting[0] is not None else (here if is_first else there).guard
            visit = visit._replace(guard=guard, depth=depth)
        yield Divergence(atom, visit, is_first, is_around, instead)
        if not is_around or instead is not None:
            return  # what follows an early exit is told of once


def _is_inside(step: Step, node: Node) -> bool:
    return node is step or any(_is_inside(step, each) for part in bodies(node) for each in part)


def _is_for_one(atom: Atom) -> bool:
    """True if a test picks out a rank by its number, not by something that follows from it."""
    return atom.varies == RANK and atom.reason is None


def _also(atom: Atom) -> dict[str, bool]:
    """What else is true of a rank of which an atom is: the first rank is the first of its node."""
    return {LOCAL_ZERO.text: True} if atom == ZERO else {}


def _answers(atom: Atom, relevant: list[Atom], asked: list[Atom]) -> Iterator[dict[str, bool]]:
    """The ways to answer the other tests: alike on both sides, and of those for one certain rank, each one alone."""
    alone = {each.text for each in asked if _is_for_one(each)} if _is_for_one(atom) else set()
    texts = sorted({each.text for each in relevant} - {atom.text} - alone)
    some, rest = texts[:_MOST_TESTS], texts[_MOST_TESTS:]
    for chosen in itertools.product((True, False), repeat=len(some)):
        for answer in (False, True) if rest else (False,):
            given = dict(zip(some, chosen, strict=True))
            yield {**dict.fromkeys(alone, False), **given, **dict.fromkeys(rest, answer)}


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
            if isinstance(node, Loop) and _leaves_function(node.body):
                yield _turns(node)
            yield from (atom for part in bodies(node) for atom in _relevant(part))


def _leaves_function(body: tuple[Node, ...]) -> bool:
    """True if a loop may end the function, so that it matters whether it turns at all."""
    inside = (part for node in body if not isinstance(node, Inlined) for part in bodies(node))
    return Exit("return") in body or any(map(_leaves_function, inside))


def _turns(loop: Loop) -> Atom:
    return Atom(f"{loop.place.path}:{loop.place.line} turns", UNKNOWN)


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
        self.last: tuple[Branch | None, int] = (None, 0)
        self.depth = 0  # of the branch in question

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
                self.visits.append(Visit(node.label, node, calls, guard, self.depth))
            return ""
        if isinstance(node, Exit):
            return node.kind
        if isinstance(node, Branch):
            return self._branch(node, calls, guard)
        if isinstance(node, Loop):
            return self._loop(node, calls, guard)
        if isinstance(node, Inlined):
            end = self.run(node.body, (*calls, node), guard)
            return end if end in ("raise", "exit") else ""
        end = self.run(node.body, calls, guard)
        return self.run(node.last, calls, guard) or end

    def _branch(self, node: Branch, calls: tuple[Inlined, ...], guard: Branch | None) -> str:
        arm = node.then if is_true(node.test, self.answers) else node.other
        if not any(each.text == self.atom.text for each in atoms(node.test)):
            return self.run(arm, calls, guard)
        before, self.depth = self.depth, len(calls)
        end = self.run(arm, calls, node)
        self.depth = before
        if end or matters(node.then) or matters(node.other):
            self.last = node, len(calls)
        return end

    def _loop(self, node: Loop, calls: tuple[Inlined, ...], guard: Branch | None) -> str:
        """One turn; that it is the last one is a step of its own, where others may go on."""
        if not self.answers.get(_turns(node).text, True):
            return ""
        before = len(self.visits)
        end = self.run(node.body, calls, guard)
        if len(self.visits) > before:
            edge = self.visits[before]._replace(loop=node)
            self.visits.insert(before, edge._replace(label=_EDGES[0]))
            if end in ("break", "return"):
                self.visits.append(edge._replace(label=LAST_TURN))
            self.visits.append(edge._replace(label=_EDGES[1]))
        return end if end in ("return", "raise", "exit") else ""
