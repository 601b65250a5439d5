"""What becomes of a rank after an exception: what its handlers do, and what the others go on to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from distlint.analysis.events import Branch, Event, Exit, Handled, Inlined, Loop, Node, Step, bodies
from distlint.analysis.sequences import steps

_GOES_ON = frozenset({""})


class Attempt(NamedTuple):
    """A ``try`` statement with handlers, on one way to it.

    Attributes:
        handled: what is tried.
        node: its syntax.
        onward: the ways out of a handler after which a rank comes to further steps: "" for going on behind it,
            "continue", "break", "return".
    """

    handled: Handled
    node: ast.Try
    onward: frozenset[str]


def attempts(body: tuple[Node, ...], onward: frozenset[str] = frozenset()) -> Iterator[Attempt]:
    """The ``try`` statements of a body at any depth, with what follows them.

    Args:
        body: of a function.
        onward: the ways out of the body that lead to further steps.
    """
    for position, node in enumerate(body):
        here = onward | {""} if _waits(body[position + 1 :]) else onward
        if isinstance(node, Handled) and node.node is not None:
            yield Attempt(node, node.node, here)
        if isinstance(node, Loop) and _waits(node.body):
            here = here & {"return"} | {"", "continue"} | ({"break"} if "" in here else set())
        elif isinstance(node, Inlined):
            here = frozenset({"", "return"}) if "" in here else frozenset()
        for inner in bodies(node):
            yield from attempts(inner, here)


def _waits(body: tuple[Node, ...]) -> bool:
    return any(step.effect.kind != "exit" for step in steps(body))


def reached(body: tuple[Node, ...]) -> Iterator[tuple[Step, Event | None]]:
    """The steps of a body, each with the event of the body's own function that makes it or leads to it."""
    for node in body:
        if isinstance(node, Step):
            yield node, node.event
        elif isinstance(node, Inlined):
            yield from ((step, node.event) for step in steps(node.body))
        else:
            for inner in bodies(node):
                yield from reached(inner)


def ways_out(body: tuple[Node, ...], name: str | None) -> frozenset[str]:
    """Return how a handler may end: "" where it goes on behind itself, or the kinds of exits.

    A test that decides whether the exception is raised again is a setting: it may be raised. But one that asks about
    the exception itself tells what is raised from what is dropped.

    Args:
        body: of the handler.
        name: by which it knows the exception.
    """
    for position, node in enumerate(body):
        if isinstance(node, Exit):
            return frozenset({node.kind})
        ends = _ends(node, name)
        if ends != _GOES_ON:
            rest = ways_out(body[position + 1 :], name) if "" in ends else frozenset()
            return ends - _GOES_ON | rest
    return _GOES_ON


def _ends(node: Node, name: str | None) -> frozenset[str]:
    if isinstance(node, Branch):
        both = ways_out(node.then, name) | ways_out(node.other, name)
        return both if "raise" not in both or _asks(node, name) else frozenset({"raise"})
    if isinstance(node, Inlined | Handled):
        return frozenset({"raise"}) if ways_out(node.body, name) == {"raise"} else _GOES_ON
    return _GOES_ON


def _asks(node: Branch, name: str | None) -> bool:
    return node.node is not None and any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node.node))
