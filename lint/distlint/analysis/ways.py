"""One way through a function: which steps are made, given how tests are answered."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import NamedTuple

from distlint.analysis.events import Branch, Exit, Inlined, Loop, Node, Step, bodies, matters
from distlint.analysis.formula import UNKNOWN, Atom, is_true

LAST_TURN = "(the last turn)"
EDGES = ("(a loop begins)", "(a loop ends)")


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
        comes_back: whether it begins an endless loop again by ``continue``, where the others wait meanwhile.
    """

    visits: list[Visit]
    end: str
    guard: tuple[Branch | None, int]
    comes_back: bool = False


class Answers(dict[str, bool]):
    """What tests are answered; one that nobody has asked yet is answered alike by all, and remembered."""

    def __init__(self, known: dict[str, bool], default: bool = True) -> None:
        super().__init__(known)
        self.default = default

    def __missing__(self, text: str) -> bool:
        self[text] = self.default
        return self.default


def leaves_function(body: tuple[Node, ...]) -> bool:
    """True if a loop may end the function, so that it matters whether it turns at all."""
    inside = (part for node in body if not isinstance(node, Inlined) for part in bodies(node))
    return Exit("return") in body or any(map(leaves_function, inside))


def turns(loop: Loop) -> Atom:
    """Return the condition that a loop turns at all."""
    return Atom(f"{loop.place.path}:{loop.place.line} turns", UNKNOWN)


class _Side(dict[str, bool]):
    """The answers of one side; what it has none of its own for is answered as by the other."""

    def __init__(self, own: Mapping[str, bool], answers: Answers) -> None:
        super().__init__(own)
        self.answers = answers

    def __missing__(self, text: str) -> bool:
        return self.answers[text]


def walk(
    body: tuple[Node, ...], own: Mapping[str, bool], answers: Answers, atom: Atom, counts: Callable[[Step], bool]
) -> Way:
    """Return the steps on the way that is given by the answers of one side, and those that both sides give."""
    walker = _Walker(own, answers, atom, counts)
    end = walker.run(body, (), None)
    return Way(walker.visits, end, walker.last, walker.comes_back)


class _Walker:
    def __init__(self, own: Mapping[str, bool], answers: Answers, atom: Atom, counts: Callable[[Step], bool]) -> None:
        self.side = _Side(own, answers)
        self.atom = atom
        self.counts = counts
        self.visits: list[Visit] = []
        self.last: tuple[Branch | None, int] = (None, 0)
        self.depth = 0  # of the branch in question
        self.comes_back = False

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
        arm = node.then if is_true(node.test, self.side) else node.other
        if self.atom.text not in node.asks:
            return self.run(arm, calls, guard)
        before, self.depth = self.depth, len(calls)
        end = self.run(arm, calls, node)
        self.depth = before
        if end or matters(node.then) or matters(node.other):
            self.last = node, len(calls)
        return end

    def _loop(self, node: Loop, calls: tuple[Inlined, ...], guard: Branch | None) -> str:
        """One turn; that it is the last one is a step of its own, where others may go on."""
        if node.leaves and not self.side[turns(node).text]:
            return ""
        before = len(self.visits)
        end = self.run(node.body, calls, guard)
        self.comes_back |= end == "continue" and _is_endless(node)
        if len(self.visits) > before:
            edge = self.visits[before]._replace(loop=node)
            self.visits.insert(before, edge._replace(label=EDGES[0]))
            if end in ("break", "return"):
                self.visits.append(edge._replace(label=LAST_TURN))
            self.visits.append(edge._replace(label=EDGES[1]))
        return end if end in ("return", "raise", "exit") else ""


def _is_endless(loop: Loop) -> bool:
    test = loop.node.test if isinstance(loop.node, ast.While) else None
    return isinstance(test, ast.Constant) and bool(test.value)
