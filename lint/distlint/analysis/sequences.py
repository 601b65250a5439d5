"""Whether ranks that answer a test differently make the same calls in the same order.

The idea is PARCOACH's (Saillard, Carribault, Barthou, 2014): compare the sequences of collectives along both ways
through a test, and tell where they part. Here a way is a choice of answers to all tests, so that two tests of the same
thing go together: a barrier that rank 0 meets early and the others later is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from distlint.analysis.events import Branch, Exit, Handled, Inlined, Loop, Node, Step
from distlint.analysis.formula import Atom, Formula, atoms, is_true
from distlint.analysis.module import matters

# Ways that are compared for one test, and for all tests of a function together: the ways double with each further test,
# and so would the time. A test of its own needs few.
_MOST_WAYS, _ALL_WAYS, _FEWEST_WAYS = 128, 512, 4
_MOST_ASKED = 100  # tests of one function that are asked about


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
    asked = list({each.text: each for each in _relevant(body) if is_asked(each)}.values())
    most = max(_FEWEST_WAYS, min(_MOST_WAYS, _ALL_WAYS // max(1, len(asked))))
    for atom in asked[:_MOST_ASKED]:
        seen: set[int] = set()
        for found in _compare(body, atom, most, counts):
            if id(found.visit.step) not in seen:
                seen.add(id(found.visit.step))
                yield found


def _compare(body: tuple[Node, ...], atom: Atom, most: int, counts: Callable[[Step], bool]) -> Iterator[Divergence]:
    for answers in _answers(most):
        here, there = (walk(body, answers, atom, answer, counts) for answer in (True, False))
        if here.end == "raise" and len(here.visits) <= len(there.visits):
            continue
        if there.end == "raise" and len(there.visits) <= len(here.visits):
            continue
        found = _first_difference(atom, here, there)
        if found is not None:
            yield found


def _first_difference(atom: Atom, here: Way, there: Way) -> Divergence | None:
    """Where the labels part; told by the step under the test, also where that was taken for a like one without."""
    earlier: tuple[Visit, Visit] | None = None
    for first, second in itertools.zip_longest(here.visits, there.visits):
        if first is not None and second is not None and first.label == second.label:
            if first.step is not second.step and _is_guarded(first) != _is_guarded(second):
                earlier = earlier or (first, second)
            continue
        if earlier is not None and not any(each is not None and _is_guarded(each) for each in (first, second)):
            first, second = earlier
        longer = first if first is not None and (second is None or _is_guarded(first)) else second
        assert longer is not None
        other = second if longer is first else first
        way = there if longer is first else here
        guard = longer.guard or (other.guard if other else None) or way.guard
        return Divergence(atom, longer._replace(guard=guard), longer is first, other)
    return None


def _is_guarded(visit: Visit) -> bool:
    return visit.guard is not None


class Answers(dict[str, bool]):
    """What tests are answered; one that nobody has asked yet is answered alike by all, and remembered."""

    def __init__(self, known: dict[str, bool], default: bool = True) -> None:
        super().__init__(known)
        self.default = default

    def __missing__(self, text: str) -> bool:
        self[text] = self.default
        return self.default


def _answers(most: int) -> Iterator[Answers]:
    """The ways to answer the tests that are come to; of too many, some.

    First all of them with yes and all with no; then the answer that was asked for last is the first to be changed, as
    one looks for a way out of a maze. Those who take the answers ask for them meanwhile.
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


def _relevant(body: Iterable[Node]) -> Iterator[Atom]:
    """The atoms of tests that decide about a step or an exit."""
    for node in body:
        if isinstance(node, Branch):
            if node.then or node.other:
                yield from atoms(node.test)
            yield from _relevant((*node.then, *node.other))
        elif isinstance(node, Loop | Inlined | Handled):
            yield from _relevant(node.body)


def walk(body: tuple[Node, ...], answers: Answers, atom: Atom, answer: bool, counts: Callable[[Step], bool]) -> Way:
    """Return the steps on the way that is given by the answer to the test in question, and those to the others."""
    walker = _Walker(answers, atom, answer, counts)
    end = walker.run(body, (), None)
    return Way(walker.visits, end, walker.last)


class _Walker:
    def __init__(self, answers: Answers, atom: Atom, answer: bool, counts: Callable[[Step], bool]) -> None:
        self.answers = answers
        self.atom = atom
        self.own = {atom.text: answer}
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
        arm = node.then if self._is_true(node.test) else node.other
        end = self.run(arm, calls, node if is_asked else guard)
        if is_asked and (end or matters(node.then) or matters(node.other)):
            self.last = node
        return end

    def _is_true(self, test: Formula) -> bool:
        return is_true(test, self._answer)

    def _answer(self, text: str) -> bool:
        if text in self.own:
            return self.own[text]
        kind, is_of_rank, _ = self.atom.text.partition("rank==")
        if is_of_rank and self.own[self.atom.text] and text.startswith(f"{kind}rank=="):
            return False  # it is one rank, and no other
        return self.answers[text]

    def _loop(self, node: Loop, calls: tuple[Inlined, ...], guard: Branch | None) -> str:
        """One turn; that it is the last one is a step of its own, where others may go on."""
        before = len(self.visits)
        end = self.run(node.body, calls, guard)
        if end == "break" and len(self.visits) > before:
            self.visits.append(self.visits[before]._replace(label="(the last turn)"))
        return end if end in ("return", "raise") else ""
