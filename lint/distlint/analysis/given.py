"""A call with the values of what it is given."""

from __future__ import annotations

import ast
from typing import NamedTuple

from distlint.analysis.events import Event
from distlint.analysis.joining import combine, of_unseen
from distlint.analysis.state import State
from distlint.analysis.value import UNKNOWN_VALUE, Value
from distlint.api import Effect


class Call(NamedTuple):
    """A call.

    Attributes:
        node: its syntax.
        receiver: the value that a method is called on.
        callee: what is called.
        args: values of the positional arguments.
        options: values of the arguments by name.
    """

    node: ast.Call
    receiver: Value
    callee: Value
    args: tuple[Value, ...]
    options: dict[str, Value]

    @property
    def name(self) -> str:
        """The last part of what is called, as written."""
        func = self.node.func
        return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""

    @property
    def owner(self) -> ast.expr:
        """The expression that a method is called on."""
        func = self.node.func
        return func.value if isinstance(func, ast.Attribute) else func

    @property
    def values(self) -> list[Value]:
        """All arguments."""
        return [*self.args, *self.options.values()]

    @property
    def first(self) -> Value:
        """The first argument."""
        return self.args[0] if self.args else UNKNOWN_VALUE

    @property
    def given(self) -> Value:
        """What is computed from the arguments."""
        return combine(self.values)

    @property
    def whole(self) -> Value:
        """What an unseen method makes of its object and its arguments."""
        return combine([self.receiver, of_unseen(self.values)])

    def emit(self, state: State, effect: Effect, **what: object) -> Event:
        """Note the event that it is."""
        return state.emit(
            effect, self.node, **{"receiver": self.receiver, "args": self.args, "options": self.options, **what}
        )
