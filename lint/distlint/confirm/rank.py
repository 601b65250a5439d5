"""One rank of a run: what its stand-ins answer, and the collectives that it makes."""

from __future__ import annotations

import functools
import linecache
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from distlint.api import (
    Effect,
    attribute_effect,
    brings_together,
    environment_kind,
    family_of,
    function_effect,
    method_effect,
    name_effect,
    named_family,
)
from distlint.confirm.stand_ins import About, StandIn, about, derive, has_stand_in, key_of
from distlint.syntax import FunctionNode, SyntaxIndex

WORLD = 2
_ENOUGH = 3_000  # answers, after which a run is taken for one that never ends
_UNORDERED = frozenset({"iterdir", "glob", "rglob", "iglob"})
# Errors of the program, or of the user who stops it: all ranks have them at once.
_ALIKE = (AttributeError, ImportError, KeyboardInterrupt, NameError, NotImplementedError, SystemExit, TypeError)
_LOCAL = frozenset({"clock", "local_file", "share"})


class StoppedError(BaseException):
    """Ends a rank where the guard has stopped it; not even ``except Exception`` lets it go on."""


class EndlessError(BaseException):
    """Ends a rank that goes on for ever."""


class Told(int):
    """A rank, or the answer to whether it is the first; read, or called like a function."""

    def __call__(self, *_args: object, **_options: object) -> Told:
        """Return itself."""
        return self

    def __str__(self) -> str:
        return str(int(self))


@dataclass(frozen=True)
class Scenario:
    """One way of answering.

    Attributes:
        answers: by what is asked: yes or no, or of a loop how many turns.
        default: the answer to all other tests.
    """

    answers: Mapping[str, int] = field(default_factory=dict)
    default: bool = True


@dataclass(frozen=True)
class Asked:
    """A test that was answered, or a loop."""

    key: str
    text: str
    answer: int
    line: int
    is_local: bool


class Rank:
    """A rank: a thread of a world.

    Args:
        number: of the rank.
        comm: its end of the world.
        index: the file.
        scenario: how tests are answered.

    Attributes:
        asked: what was asked, in order.
        counts_logs: whether what is logged without a collective must be the same on all ranks, too.
        muted: lines whose collectives are left out.
        reached: lines of the file on the way to some collective.
        last: lines on the way to the last collective.
        here: its own line.
        stopped: why the guard has stopped this rank.
        logged: names that were logged without a collective, with their lines.
        attempts: how often each ``try`` was entered; it is the first time that something fails in it.
        functions: compiled functions of the file.
    """

    def __init__(self, number: int, comm: Any, index: SyntaxIndex, scenario: Scenario) -> None:
        self.number = number
        self.comm = comm
        self.index = index
        self.muted: frozenset[int] = frozenset()
        self.counts_logs = False
        self.scenario = scenario
        self.asked: dict[str, Asked] = {}
        self.reached: set[int] = set()
        self.last: set[int] = set()
        self.here = 0
        self.stopped: BaseException | None = None
        self.logged: dict[str, set[int]] = {}
        self.functions: dict[FunctionNode, Any] = {}
        self.globals: dict[str, Any] = {}
        self.failing: list[type[BaseException]] = []
        self._marks: dict[int, object] = {}
        self.attempts: Counter[int] = Counter()
        self._times: Counter[int] = Counter()
        self._errors: dict[str, type[BaseException]] = {}
        self._meetings = 0
        self._answered = 0

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
        return Told(True) if kind == "distributed" else Told(WORLD)

    # Where the rank is.

    def lines(self) -> list[int]:
        """Return the lines of the file that are being executed, innermost first."""
        found = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self.index.path:
                found.append(frame.f_lineno)
            frame = frame.f_back
        return found

    def text_here(self) -> str:
        """Return the line that is being executed."""
        lines = self.lines()
        return self.index.line(lines[0]).decode(errors="replace").strip() if lines else "a value"

    # What stand-ins do.

    def decide(self, value: StandIn) -> bool:
        """Answer a test; one that is asked again and again in one place is answered otherwise some time: loops end."""
        told = about(value)
        line = next(iter(self.lines()), 0)
        times = self._times[line]
        self._times[line] += 1
        return bool(self._answer(told.key, told.text, told.is_local, self.scenario.default)) ^ bool(times // 3 % 2)

    def _answer(self, key: str, text: str, is_local: bool, default: int) -> int:
        self._answered += 1
        if self._answered > _ENOUGH:
            raise EndlessError
        answer = self.scenario.answers.get(key, default)
        self.asked.setdefault(key, Asked(key, text, answer, next(iter(self.lines()), 0), is_local))
        return answer

    def items(self, value: StandIn) -> Iterator[Any]:
        """Go through a stand-in: two turns, unless the scenario says one."""
        told = about(value)
        key = key_of("turns", "of what is even" if told.is_even else told.key)
        number = self._answer(key, f"turns of {told.text}", told.is_local and not told.is_even, 2)
        order = range(number)
        if told.is_unordered:
            yield from self.in_own_order([self.item(value, index) for index in order])
            return
        for index in order:
            yield self.item(value, index)

    def in_own_order(self, values: list[Any]) -> Iterator[Any]:
        """Go through values in this rank's own order; collectives meanwhile are for the value at hand."""
        number = len(self._marks)
        try:
            for value in values[::-1] if self.number else values:
                self._marks[number] = key_of(value)
                yield value
        finally:
            self._marks.pop(number, None)

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

    # Calls.

    def call(self, callee: StandIn, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return what a call of a stand-in returns."""
        told = about(callee)
        receiver = about(told.owner) if told.owner is not None else None
        effect = function_effect(told.name) if told.name else None
        if effect is None and receiver is not None:
            effect = method_effect(receiver.family, told.attribute)
        if effect is not None and effect.kind == "collective":
            return self._collective(effect, callee, args, options)
        if self.failing:
            raise self.failing.pop()
        if effect is not None:
            return self._known(effect, callee, args, options)
        family = family_of(told.name) if told.name else ""
        is_alone = family.endswith("trainer") and _is_one(options.get("devices"))
        if is_alone or options.get("sync_on_compute") is False:
            return derive("make", callee, args, options)
        if family:
            return derive("make", callee, args, options, family=family)
        named = name_effect(told.name.rpartition(".")[2]) if told.name else None
        if named is not None:
            return self.told(named.kind)
        if told.name in ("os.getenv", "os.environ.get") and args and isinstance(args[0], str):
            kind = environment_kind(args[0])
            return str(self.told(kind)) if kind else derive("call", callee, args)
        return self._other(callee, args, options)

    def _other(self, callee: StandIn, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        told = about(callee)
        if told.wrapped:
            self.meet("forward", ())
            return derive("call", callee, args, options, has_gradient=True)
        if brings_together(told.attribute or told.text):
            return derive("together", callee, key_of(self._meetings), is_local=False)
        result = derive("call", callee, args, options)
        if told.attribute == "backward" and told.owner is not None:
            self._backward(about(told.owner).has_gradient)
        receiver = about(told.owner) if told.owner is not None else None
        if receiver is not None and (receiver.is_local or receiver.has_gradient):
            about(result).is_local |= receiver.is_local
            about(result).has_gradient |= receiver.has_gradient
        about(result).is_unordered = told.attribute in _UNORDERED
        about(result).is_set = told.attribute == "keys"
        return result

    def _backward(self, is_shared: bool) -> None:
        if is_shared:
            self.meet("backward", ())

    def _known(self, effect: Effect, callee: StandIn, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        kind = effect.kind
        if kind in ("rank", "local_rank", "world", "zero", "local_zero", "last", "distributed"):
            return self.told(kind)
        if kind == "wrap":
            wrapped = tuple(self._wrap(each, effect.wrapped) for each in args)
            return wrapped[0] if len(wrapped) == 1 else wrapped
        if kind == "log":
            return self._log(effect, args, options)
        if kind == "backward":
            self._backward(any(about(each).has_gradient for each in args if isinstance(each, StandIn)))
            return None
        if kind == "exit":
            raise SystemExit
        if kind == "loader":
            return (
                args[0]
                if args and isinstance(args[0], StandIn) and about(args[0]).family == "loader"
                else derive("loader", callee, args, options, family="loader")
            )
        if kind in _LOCAL:
            is_even = bool(options.get("apply_padding"))
            return derive(kind, callee, args, self.number, self._answered, is_local=True, is_even=is_even)
        return derive("call", callee, args, options, is_unordered=kind == "list_files")

    def _wrap(self, value: Any, how: str) -> Any:
        if not isinstance(value, StandIn) or about(value).family == "loader":
            return value
        return derive("wrap", value, how, wrapped=how, family=about(value).family)

    def _log(self, effect: Effect, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        first = args[0] if args else options.get("name", options.get("dictionary"))
        names = sorted(map(str, first)) if isinstance(first, dict) else [first] if isinstance(first, str) else []
        if options.get("sync_dist"):
            self.meet(f"{effect.label}({', '.join(map(repr, names))})", args)
        elif self.counts_logs and not options.get("rank_zero_only"):
            for name in names:
                self.logged.setdefault(name, set()).update(self.lines())

    def _collective(self, effect: Effect, callee: StandIn, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        group = options.get("group", args[effect.group] if 0 <= effect.group < len(args) else None)
        if group is None:
            self.meet(f"{effect.label} of states that are sharded" if effect.sharded else effect.label, args)
        shared = key_of("result", effect.label, self._meetings)
        for position in effect.changes:
            self._set(args[position] if position < len(args) else next(iter(options.values()), None), shared)
        if effect.returns in ("local", ""):
            return derive("result", callee, shared, self.number, text=effect.label, is_local=True)
        inside = has_stand_in(args) and any(about(each).has_gradient for each in args if isinstance(each, StandIn))
        return derive("result", callee, shared, text=effect.label, is_local=False, has_gradient=inside)

    def _set(self, value: Any, key: str) -> None:
        """What a collective has changed in place is the same on all ranks."""
        if isinstance(value, StandIn):
            about(value).key, about(value).is_local = key, False
            about(value).items.clear()
        elif isinstance(value, list):
            text = "what a collective gave"
            value[:] = [StandIn(About(self, key_of(key, place), text)) for place in range(len(value))]

    def meet(self, label: str, args: tuple[Any, ...]) -> None:
        """Make a collective: wait for the other ranks, who must make the same."""
        from distmetrics.comm.base import Call, in_call

        lines = self.lines()
        if lines and lines[0] in self.muted:
            return
        self._meetings += 1
        self.last, self.here = set(lines), next(iter(lines), 0)
        self.reached |= self.last
        marks = tuple(self._marks.values()) if args else ()
        try:
            with in_call(Call(label, "of another item of a set" if marks else "", self._site(), (label, marks))):
                self.comm.barrier()
        except Exception as error:
            self.stopped = error
            raise StoppedError from error

    def _site(self) -> Any:
        from distmetrics.errors import Site

        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.index.path:
            frame = frame.f_back
        return Site(self.index.path, frame.f_lineno, frame.f_code.co_name) if frame is not None else None

    def finish(self) -> None:
        """Come to the end of the function; what was logged must be the same everywhere."""
        names = tuple(sorted(self.logged))
        label = f"the end, having logged {', '.join(names) or 'nothing'}" if names else "the end"
        lines = set().union(*self.logged.values())
        try:
            self.meet(label, ())
        finally:
            self.last |= lines
            self.reached |= lines

    def attempt(self, number: int, line: int, is_caught: Any) -> Any:
        """A ``try``: in some scenarios the first call in it that may fail does."""
        return _Attempt(self, number, line, is_caught)


def _is_one(devices: Any) -> bool:
    """True if a trainer is given one device: it has no other ranks then."""
    return devices in (1, "1") or (isinstance(devices, list) and len(devices) == 1)


def _types(caught: Any) -> Iterator[type[BaseException]]:
    """The classes of errors that a ``try`` catches; any, if it has only a ``finally``."""
    parts = list(caught) if isinstance(caught, tuple) else [caught]
    if not parts:
        yield RuntimeError
    for each in parts:
        if isinstance(each, tuple):
            yield from _types(each)
        elif isinstance(each, type) and issubclass(each, BaseException):
            yield RuntimeError if each in (Exception, BaseException) else each


class _Attempt:
    def __init__(self, rank: Rank, number: int, line: int, caught: Any) -> None:
        self._rank = rank
        self._number = number
        self._line = line
        self._caught = caught

    def __enter__(self) -> None:
        rank = self._rank
        caught = [each for each in _types(self._caught()) if not issubclass(each, _ALIKE)]
        if not caught:
            return
        text = f"something fails in the try of line {self._line} on rank {rank.number}"
        answer = rank._answer(key_of("fails", self._number, rank.number), text, True, 0)
        rank.attempts[self._number] += 1
        if answer and rank.attempts[self._number] == 1:
            rank.failing.append(caught[0])

    def __exit__(self, *error: object) -> None:
        self._rank.failing.clear()


def source_lines(index: SyntaxIndex) -> None:
    """Let errors show lines of the file, also where it is not on disk."""
    linecache.cache[index.path] = (len(index.source), None, index.source.splitlines(True), index.path)
