"""Python's own functions where they are given stand-ins; those that reach outside are stand-ins themselves."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from typing import Any

from distlint.confirm.rank import Rank
from distlint.confirm.stand_ins import StandIn, about, derive, has_stand_in, key_of

_OUTSIDE = ("open", "input", "exec", "eval", "compile", "breakpoint", "help", "exit", "quit", "globals", "memoryview")
_DERIVED = ("len", "int", "float", "abs", "round", "str", "sum", "min", "max", "any", "all", "reversed", "pow")
_ASKED = ("isinstance", "issubclass", "callable")


class Unordered(list[Any]):
    """A set, which each rank goes through in an order of its own."""

    def __init__(self, rank: Rank, values: Any = ()) -> None:
        super().__init__(dict.fromkeys(list.__iter__(values) if isinstance(values, Unordered) else values))
        self._rank = rank

    def __iter__(self) -> Iterator[Any]:
        values = list(super().__iter__())
        if all(map(_is_number, values)):
            return iter(values)  # Python orders numbers alike everywhere
        return self._rank.in_own_order(values)

    def add(self, value: Any) -> None:
        """Put a value in."""
        if value not in self:
            self.append(value)

    def update(self, values: Any) -> None:
        """Put values in."""
        for each in list(values):
            self.add(each)

    def __and__(self, other: Any) -> Unordered:
        return Unordered(self._rank, [each for each in list.__iter__(self) if each in other])

    def __or__(self, other: Any) -> Unordered:
        return Unordered(self._rank, [*list.__iter__(self), *other])

    def __sub__(self, other: Any) -> Unordered:
        return Unordered(self._rank, [each for each in list.__iter__(self) if each not in other])

    union, intersection, difference = __or__, __and__, __sub__


def builtins_for(rank: Rank) -> dict[str, Any]:
    """Return what a rank's code finds as Python's own names."""
    ours: dict[str, Any] = dict(vars(builtins))
    for name in _OUTSIDE:
        ours[name] = rank.unknown("builtin", name)
    for name in _DERIVED:
        ours[name] = _derived(name, getattr(builtins, name))
    for name in _ASKED:
        ours[name] = _asked(name, getattr(builtins, name))
    ours |= {
        "print": lambda *args, **options: None,
        "set": lambda values=(): _unordered(rank, values),
        "frozenset": lambda values=(): _unordered(rank, values),
        "sorted": _sorted,
        "range": _range,
        "enumerate": _enumerate,
        "next": _next,
        "bool": bool,
        "type": lambda *args: derive("type", *args) if has_stand_in(*args) else type(*args),
        "hasattr": lambda value, name: bool(derive("has", value, name)) if _is(value) else hasattr(value, name),
        "super": lambda *args: _super(rank),
        "__import__": lambda name, *args: _import(rank, name, *args),
    }
    return ours


def _is(value: object) -> bool:
    return isinstance(value, StandIn)


def _is_number(value: object) -> bool:
    if isinstance(value, StandIn):
        return about(value).is_number
    return isinstance(value, int) and not isinstance(value, bool)


def _derived(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **options: Any) -> Any:
        is_number = name in ("int", "len")
        return derive(name, args, options, is_number=is_number) if any(map(_is, args)) else real(*args, **options)

    if name in ("int", "float", "str"):  # they are asked for as classes, too
        return type(name, (real,), {"__new__": lambda cls, *args, **options: function(*args, **options)})  # type: ignore[arg-type]
    return function


def _asked(name: str, real: Callable[..., bool]) -> Callable[..., bool]:
    def function(*args: Any) -> bool:
        return bool(derive(name, *args)) if has_stand_in(*args) else real(*args)

    return function


def options_of(value: Any) -> Any:
    """Return what ``f(**value)`` passes: of a stand-in, nothing."""
    return {} if _is(value) else value


def _unordered(rank: Rank, values: Any) -> Any:
    return derive("set", values, is_unordered=True) if _is(values) else Unordered(rank, values)


def _sorted(values: Any, **options: Any) -> Any:
    if _is(values):
        return derive("sorted", values)
    plain = list(list.__iter__(values)) if isinstance(values, Unordered) else list(values)
    key = options.get("key")
    if isinstance(values, Unordered) and key is not None and len({key_of(key(each)) for each in plain}) < len(plain):
        return values  # those that have one key keep the order in which they came
    if has_stand_in(plain) or options:
        return sorted(plain, key=repr)
    return sorted(plain)


def _range(*args: Any) -> Any:
    return derive("range", args) if any(map(_is, args)) else range(*args)


def _enumerate(values: Any, start: Any = 0) -> Iterator[tuple[Any, Any]]:
    if not _is(values):
        yield from enumerate(values, start)
        return
    for number, each in enumerate(values):
        yield derive("number", values, number, start, is_local=False, has_gradient=False), each


def _next(values: Any, *default: Any) -> Any:
    if not _is(values):
        return next(values, *default)
    return about(values).rank.item(values, 0)


def _super(rank: Rank) -> Any:
    frame = sys._getframe(2)
    own = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None
    if not isinstance(own, StandIn):
        return rank.unknown("name", "super")
    above = _Above.__new__(_Above)
    object.__setattr__(above, "_distlint", about(derive("super", own, family=about(own).family, text="super()")))
    return above


class _Above(StandIn):
    """``super()`` of a stand-in, which may be initialised with anything."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass


def _import(rank: Rank, name: str, *args: Any) -> Any:
    level = args[3] if len(args) > 3 else 0
    listed = args[2] if len(args) > 2 else ()
    return rank.imported("." * level + (name if listed or level else name.partition(".")[0]))
