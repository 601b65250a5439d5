"""What a function does, in order: events for rules to ask about, and the tree of control that they stand in."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from distlint.analysis.formula import FALSE, Atom, Constant, Formula
from distlint.analysis.value import UNKNOWN_VALUE, Value
from distlint.api import Effect
from distlint.syntax import FunctionNode, Located


class Guard(NamedTuple):
    """Something that decides whether, or how often, a place is reached.

    Attributes:
        kind: "branch", "and", "for", "while", "try", "except", "finally", "with", "decorator", or of an early exit
            before it "exit return", "exit continue" or "exit break".
        test: the value of the test, of the iterable of a loop, or what is unknown.
        node: the test, the iterable, or the statement.
        taken: whether the place is reached where the test is true.
    """

    kind: str
    test: Value
    node: Located
    taken: bool = True


_WORLD = ("torch.distributed.group.WORLD", "torch.distributed.GroupMember.WORLD")


@dataclass(eq=False, repr=False)
class Event:
    """A call, or another thing that a rule may ask about.

    Attributes:
        effect: what kind of thing it is, from the tables of APIs.
        node: the call or expression.
        function: where it stands.
        guards: what decides whether it is reached, outermost first.
        receiver: the value that a method is called on.
        args: values of the positional arguments.
        options: values of the arguments by name.
        result: what it returns.
        number: its place in the order of the function's events.
        is_lost: whether it changes a value in place that nobody can read: a temporary one.
        is_owned: whether it changes a new tensor or list in place that nothing but a name of the function holds.
        is_dropped: whether its result is thrown away where it stands.
        target: the function or method of this file that is called.
    """

    effect: Effect
    node: ast.expr
    function: FunctionNode
    guards: tuple[Guard, ...]
    receiver: Value = UNKNOWN_VALUE
    args: tuple[Value, ...] = ()
    options: dict[str, Value] = field(default_factory=dict)
    result: Value = UNKNOWN_VALUE
    number: int = 0
    is_lost: bool = False
    is_owned: bool = False
    is_dropped: bool = False
    target: FunctionNode | None = None

    @property
    def has_own_group(self) -> bool:
        """True if the call names the process group that it is for: fewer than all ranks may have to make it."""
        return self.group != FALSE

    @property
    def group(self) -> Formula:
        """Whether the call names its own process group; of a parameter, that is for the caller to say."""
        for name in ("group", "process_group", "comm"):
            position = self.effect.group if name == "group" else -1
            group, node = self.argument(position, name), self.argument_node(position, name)
            if group is not None:
                if isinstance(group.formula, Constant) and group.formula.axis:
                    return group.formula
                is_own = group.family != "none" and group.name not in _WORLD
                return _given(self.function, node) if is_own else FALSE
        return FALSE

    @property
    def is_reached(self) -> bool:
        """True if it may be reached where there are several ranks."""
        formulas = ((guard.test.formula, guard.taken) for guard in self.guards)
        return not any(isinstance(each, Constant) and each.value is not taken for each, taken in formulas)

    @property
    def kind(self) -> str:
        """The kind of its effect."""
        return self.effect.kind

    @property
    def label(self) -> str:
        """What the call is named in messages."""
        return self.effect.label

    def argument(self, position: int, name: str) -> Value | None:
        """Return the value of an argument by position or name; None if it is not given."""
        if name in self.options:
            return self.options[name]
        return self.args[position] if 0 <= position < len(self.args) else None

    def argument_node(self, position: int, name: str) -> ast.expr | None:
        """Return the expression of an argument by position or name."""
        if not isinstance(self.node, ast.Call):
            return None
        for keyword in self.node.keywords:
            if keyword.arg == name:
                return keyword.value
        return self.node.args[position] if 0 <= position < len(self.node.args) else None


def _given(function: FunctionNode, node: ast.expr | None) -> Formula:
    """A group by its source: whether a caller gives it, where it is a parameter that the function leaves as it is."""
    text = ast.unparse(node) if node is not None else ""
    owner = function.owner if text.startswith("self.") else None
    own = Constant(True, f"{owner.name if owner is not None else function.name}.{text}")
    if not isinstance(node, ast.Name) or all(node.id != each.arg for each in function.parameters):
        return own
    names = (each for each in ast.walk(function.node) if isinstance(each, ast.Name) and each.id == node.id)
    is_kept = all(isinstance(each.ctx, ast.Load) for each in names)
    return Atom(node.id, parameter=node.id, owner=function.name) if is_kept else own


class Place(NamedTuple):
    """A line of a file, for traces and for helpers in other files."""

    path: str
    line: int
    text: str


class Step(NamedTuple):
    """A call that needs all ranks, or ends a rank's way through a step.

    Attributes:
        label: by which calls are matched.
        place: where it is.
        event: the event in this file; None in summaries of other files.
        effect: what it does.
        group: whether it names its own process group.
    """

    label: str
    place: Place
    event: Event | None
    effect: Effect
    group: Formula = FALSE


class Branch(NamedTuple):
    """Two ways on; ``node`` is the test, None in summaries; ``asks`` its atoms, where ways are compared."""

    test: Formula
    then: tuple[Node, ...]
    other: tuple[Node, ...]
    place: Place
    node: Located | None = None
    asks: frozenset[str] = frozenset()


class Loop(NamedTuple):
    """Statements that run again and again; ``varies`` tells how far ranks may disagree how often.

    ``leaves`` tells whether it may end the function, where ways are compared.
    """

    body: tuple[Node, ...]
    place: Place
    varies: int
    node: Located | None = None
    leaves: bool = False


class Exit(NamedTuple):
    """The end of a function ("return"), of a turn ("continue"), of a loop ("break"), or of the job ("raise")."""

    kind: str


class Handled(NamedTuple):
    """A ``try`` statement: what is tried, what each handler does instead, and what is done in any case.

    ``node`` is None in summaries.
    """

    body: tuple[Node, ...]
    handlers: tuple[tuple[Node, ...], ...]
    last: tuple[Node, ...] = ()
    node: ast.Try | None = None


class Inlined(NamedTuple):
    """The body of a function that is called here."""

    body: tuple[Node, ...]
    place: Place
    event: Event | None


Node: TypeAlias = Step | Branch | Loop | Exit | Handled | Inlined


def bodies(node: Node) -> list[tuple[Node, ...]]:
    """Return the bodies inside a node."""
    if isinstance(node, Branch):
        return [node.then, node.other]
    if isinstance(node, Loop | Inlined):
        return [node.body]
    return [node.body, *node.handlers, node.last] if isinstance(node, Handled) else []


def matters(body: tuple[Node, ...]) -> bool:
    """True if callers must know of a body: it has a step that all ranks must make."""
    return any(isinstance(node, Step) or any(map(matters, bodies(node))) for node in body)


def with_bodies(node: Node, change: Callable[[tuple[Node, ...]], tuple[Node, ...]]) -> Node:
    """Return a node whose bodies are changed."""
    if isinstance(node, Branch):
        return node._replace(then=change(node.then), other=change(node.other))
    if isinstance(node, Loop | Inlined):
        return node._replace(body=change(node.body))
    if isinstance(node, Handled):
        handlers = tuple(map(change, node.handlers))
        return node._replace(body=change(node.body), handlers=handlers, last=change(node.last))
    return node


@dataclass(eq=False)
class FunctionReport:
    """What one function does.

    Attributes:
        function: its syntax.
        events: in the order of the text.
        body: the tree of control; only what holds collectives or exits.
        returns: what is known of its result.
        returned: what each ``return`` gives.
        read: numbers of the collectives whose results are read, but for those only logged or printed.
        shown: numbers of those that are.
        named: numbers of those whose results have a name.
        parameters: what is known of what it is called with.
        environment: its local names at the end.
    """

    function: FunctionNode
    events: list[Event] = field(default_factory=list)
    body: tuple[Node, ...] = ()
    returns: Value = UNKNOWN_VALUE
    returned: list[tuple[ast.Return, Value]] = field(default_factory=list)
    read: frozenset[int] = frozenset()
    shown: frozenset[int] = frozenset()
    named: frozenset[int] = frozenset()
    parameters: dict[str, Value] = field(default_factory=dict)
    environment: dict[str, Value] = field(default_factory=dict)

    def is_unread(self, event: Event) -> bool:
        """True if nothing but its own name holds what a collective returns or changes, and that is never read."""
        return event.number in self.named and event.number not in self.read | self.shown


class Summary(NamedTuple):
    """What other files must know of a function: can be pickled.

    Attributes:
        name: full name.
        parameters: in order.
        body: as of ``FunctionReport``, without syntax.
        returns: what is known of its result, without syntax.
        defaults: what parameters are as conditions where a call leaves them out.
    """

    name: str
    parameters: tuple[str, ...]
    body: tuple[Node, ...]
    returns: Value
    defaults: tuple[tuple[str, Formula], ...] = ()
