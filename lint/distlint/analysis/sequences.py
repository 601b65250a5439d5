"""Whether ranks that answer a test differently make the same calls in the same order.

The idea is PARCOACH's (Saillard, Carribault, Barthou, 2014): compare the sequences of collectives along both ways
through a test, and tell where they part. Here a way is a choice of answers to all tests, so that two tests of the same
thing go together: a barrier that rank 0 meets early and the others later is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

from distlint.analysis.events import Branch, Exit, Handled, Inlined, Loop, Node, Step, bodies, matters, with_bodies
from distlint.analysis.formula import LOCAL_ZERO, ZERO, Atom, atoms, numbered, picks_one
from distlint.analysis.ways import EDGES, LAST_TURN, Answers, Visit, Way, leaves_function, turns, walk
from distlint.api import is_named

# Ways that are compared for one test, and for all tests of a function together: the ways double with each further test,
# and so would the time. A test of its own needs few.
_MOST_WAYS, _ALL_WAYS, _FEWEST_WAYS = 128, 512, 4
_MOST_ASKED = 100  # tests of one function that are asked about


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
    body = _decisive(body, counts)
    if not matters(body):
        return
    tests = list({each.text: each for each in _relevant(body)}.values())
    asked = list(filter(is_asked, tests))
    most = max(_FEWEST_WAYS, min(_MOST_WAYS, _ALL_WAYS // max(1, len(asked))))
    for atom in asked[:_MOST_ASKED]:
        seen: set[int] = set()
        for answers in _answers(most):
            for each in _compare(body, atom, tests, answers, counts):
                key = id(each.visit.step) if each.is_around else id(each.visit.guard)
                if key not in seen:
                    seen.add(key)
                    yield each


def _decisive(body: tuple[Node, ...], counts: Callable[[Step], bool]) -> tuple[Node, ...]:
    """A body without what holds neither a step that counts nor an exit: nobody need answer the tests in there."""
    kept: list[Node] = []
    for node in body:
        if isinstance(node, Step | Exit):
            kept += [node] if isinstance(node, Exit) or counts(node) else []
            continue
        inside = with_bodies(node, lambda part: _decisive(part, counts))
        if any(bodies(inside)):
            kept.append(_noted(inside))
    return tuple(kept)


def _noted(node: Node) -> Node:
    """A node with what each way through it would ask again."""
    if isinstance(node, Branch):
        return node._replace(asks=frozenset(each.text for each in atoms(node.test)))
    return node._replace(leaves=leaves_function(node.body)) if isinstance(node, Loop) else node


def _compare(
    body: tuple[Node, ...], atom: Atom, tests: list[Atom], answers: Answers, counts: Callable[[Step], bool]
) -> Iterator[Divergence]:
    alone = _answered(atom, tests) if picks_one(atom) else {}
    here = walk(body, {**alone, **_also(atom), atom.text: True}, answers, atom, counts)
    there = walk(body, {**alone, atom.text: False}, answers, atom, counts)
    if here.comes_back != there.comes_back:
        return
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
    first, second = ([visit for visit in part if visit.label not in EDGES] for part in (first, second))
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
        is_made = is_first != (visit.label == LAST_TURN)  # who has its last turn leaves the others in the next one
        yield Divergence(atom, visit, is_made, is_around, instead)
        if not is_around or instead is not None:
            return  # what follows an early exit is told of once


def _is_inside(step: Step, node: Node) -> bool:
    return node is step or any(_is_inside(step, each) for part in bodies(node) for each in part)


def _answered(atom: Atom, tests: list[Atom]) -> dict[str, bool]:
    """What a test for one rank answers of others: of the first of all, it is the first on every axis."""
    axis = atom.axis if is_named(atom.axis) else ""
    others = [each for each in tests if picks_one(each) and (each.axis == axis or not is_named(each.axis))]
    first = [each for each in tests if is_named(each.axis) and each == numbered("rank", each.axis, 0)]
    answers = dict.fromkeys((each.text for each in others), False)
    return answers | dict.fromkeys((each.text for each in first if atom.text == ZERO.text), True)


def _also(atom: Atom) -> dict[str, bool]:
    """What else is true of a rank of which an atom is: the first rank is the first of its node."""
    return {LOCAL_ZERO.text: True} if atom.text == ZERO.text else {}


def _answers(most: int) -> Iterator[Answers]:
    """The ways to answer the tests that are come to; of too many, some.

    First all of them with no and with yes; then the answer that was asked for last is the first to be changed, as one
    looks for a way out of a maze. Those who take the answers ask for them meanwhile.
    """
    first = Answers({}, default=False)
    yield first
    answers = Answers({})
    for _ in range(most):
        yield answers
        known = dict(answers)
        while known and not known[last := next(reversed(known))]:
            del known[last]
        if not known:
            return
        known[last] = False
        answers = Answers(known)
    for text in itertools.islice(first, most // 4):  # the maze is too large: each test alone, too
        yield Answers({text: True}, default=False)
        yield Answers({text: False})


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
            yield from _relevant(node.then)
            yield from _relevant(node.other)
        elif isinstance(node, Loop | Inlined | Handled):
            if isinstance(node, Loop) and node.leaves:
                yield turns(node)
            yield from (atom for part in bodies(node) for atom in _relevant(part))
