"""One rank of a run: what its stand-ins answer, and the collectives that it makes."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Iterator
from typing import Any

from distlint.api import (
    attribute_effect,
    environment_kind,
    method_effect,
    name_effect,
    named_family,
)
from distlint.confirm.answers import Answers
from distlint.confirm.frames import lines
from distlint.confirm.meeting import Meeting
from distlint.confirm.stand_ins import About, StandIn, about, derive, key_of
from distlint.syntax import FunctionNode, SyntaxIndex

WORLD = 2


class Told(int):
    """A rank, or the answer to whether it is the first; read, or called like a function."""

    def __call__(self, *_args: object, **_options: object) -> Told:
        """Return itself."""
        return self

    def __str__(self) -> str:
        return str(int(self))


Calling = Callable[["Rank", StandIn, "tuple[Any, ...]", "dict[str, Any]"], Any]


class Rank:
    """A rank: a thread of a world.

    Args:
        number: of the rank.
        index: the file.
        answers: what it answers.
        meeting: where it meets the others.
        call: returns what calls of stand-ins return.

    Attributes:
        functions: compiled functions of the file.
        globals: names of the file.
    """

    def __init__(self, number: int, index: SyntaxIndex, answers: Answers, meeting: Meeting, call: Calling) -> None:
        self.number = number
        self.index = index
        self.answers = answers
        self.meeting = meeting
        self._call = call
        self.functions: dict[FunctionNode, Any] = {}
        self.globals: dict[str, Any] = {}
        self._errors: dict[str, type[BaseException]] = {}

    # What is outside.

    def unknown(self, how: str, text: str, **known: Any) -> StandIn:
        """Return a stand-in that the function did not make itself."""
        return StandIn(About(self, key_of(how, text, known.get("name", "")), text, **known))

    def named(self, name: str) -> Any:
        """Return what stands for a name that says what it is by convention."""
        effect = name_effect(name)
        if effect is not None:
            return self.told(effect.kind)
        return self.unknown("name", name, family=named_family(name))

    def imported(self, name: str) -> Any:
        """Return what stands for something that is imported."""
        last = name.rpartition(".")[2]
        if last.endswith(("Error", "Exception")):
            return self.error_class(last)
        return self.unknown("import", last, name=name)

    def error_class(self, name: str) -> type[BaseException]:
        """Return a class of errors of a library's."""
        return self._errors.setdefault(name, type(name, (RuntimeError,), {}))

    def told(self, kind: str) -> Any:
        """Return what tells the rank, or how many there are."""
        if kind in ("rank", "local_rank"):
            return Told(self.number)
        if kind in ("zero", "local_zero"):
            return Told(self.number == 0)
        if kind == "last":
            return Told(self.number == WORLD - 1)
        if kind in ("group", "mesh"):
            return self.unknown(kind, kind)
        return Told(True) if kind == "distributed" else Told(WORLD)

    def text_here(self) -> str:
        """Return the line that is being executed."""
        here = lines(self.index.path)
        return self.index.line(here[0]).decode(errors="replace").strip() if here else "a value"

    # What stand-ins do.

    def decide(self, value: StandIn) -> bool:
        """Answer a test."""
        told = about(value)
        return self.answers.decide(told.key, told.text, told.is_local)

    def items(self, value: StandIn) -> Iterator[Any]:
        """Go through a stand-in: two turns, unless the scenario says one."""
        told = about(value)
        key = key_of("turns", "of what is even" if told.is_even else told.key)
        number = self.answers.answer(key, f"turns of {told.text}", told.is_local and not told.is_even, 2)
        order = range(number)
        if told.is_unordered:
            yield from self.in_own_order([self.item(value, index) for index in order])
            return
        for index in order:
            yield self.item(value, index)

    def in_own_order(self, values: list[Any]) -> Iterator[Any]:
        """Go through values in this rank's own order."""
        return self.meeting.in_order(values[::-1] if self.number else values)

    def item(self, value: StandIn, index: Any) -> Any:
        """Return an item; of a loader, a batch of this rank's own."""
        told = about(value)
        if told.name == "os.environ" and isinstance(index, str):
            kind = environment_kind(index)
            return str(self.told(kind)) if kind else derive("item", value, index)
        if told.family == "loader":
            text = f"a batch of rank {self.number}"
            return derive("batch", value, index, self.number, text=text, is_local=True, is_even=True)
        if told.wrapped and isinstance(index, int):
            return derive("item", value, index, wrapped=told.wrapped)
        return derive("item", value, index, is_even=told.is_even and not isinstance(index, slice))

    def attribute(self, value: StandIn, name: str) -> Any:
        """Return an attribute that nobody has set."""
        told = about(value)
        if told.cls is not None:
            own = self._member(value, told.cls, name)
            if own is not None:
                return own
        if told.name and not told.family:
            return self.imported(f"{told.name}.{name}")
        effect = attribute_effect(name)
        if effect is not None and method_effect(told.family, name) is None:
            return self.told(effect.kind)
        result = derive(
            "attribute", value, name, text=f"{told.text}.{name}", family=named_family(name), owner=value, attribute=name
        )
        if not told.family or method_effect(told.family, name) is None:
            value.__dict__[name] = result
        return result

    def _member(self, value: StandIn, cls: Any, name: str) -> Any:
        for each in self.index.lineage(cls):
            method = each.methods.get(name)
            if method is None:
                continue
            function = self.functions[method]
            if method.is_property:
                return function(value)
            return function if method.is_static else functools.partial(function, value)
        return None

    def call(self, callee: StandIn, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return what a call of a stand-in returns."""
        return self._call(self, callee, args, options)


def source_lines(index: SyntaxIndex) -> None:
    """Let errors show lines of the file, also where it is not on disk."""
    linecache.cache[index.path] = (len(index.source), None, index.source.splitlines(True), index.path)
