"""Stand-ins for what a function gets from outside: any value, known by how it came about."""

from __future__ import annotations

import dis
import hashlib
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

from distlint.syntax import ClassNode


class Owner(Protocol):
    """The rank that a stand-in is of, which answers for it."""

    def error_class(self, name: str) -> type[BaseException]:
        """Return a class of errors of a library's."""

    def attribute(self, value: StandIn, name: str) -> Any:
        """Return an attribute that nobody has set."""

    def call(self, callee: StandIn, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return what a call returns."""

    def decide(self, value: StandIn) -> bool:
        """Answer a test."""

    def items(self, value: StandIn) -> Iterator[Any]:
        """Go through a stand-in."""

    def item(self, value: StandIn, index: Any) -> Any:
        """Return an item."""

    def text_here(self) -> str:
        """Return the line that is being executed."""


_TWO = (
    "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift radd rsub rmul rtruediv rfloordiv rmod rpow "
    "rmatmul rand ror rxor lt le gt ge ne"
)
_ONE = "neg pos abs invert round ceil floor trunc"
_OF_SETS = frozenset({"and", "or", "sub", "xor", "rand", "ror", "rsub", "rxor"})
_ERRORS = ("Error", "Exception", "Interrupt", "Warning")


def key_of(*parts: object) -> str:
    """Return a short name for how something came about; the same on all ranks, if that is the same."""
    return hashlib.blake2b(repr(tuple(map(_written, parts))).encode(errors="replace"), digest_size=8).hexdigest()


def _written(value: object) -> object:
    if isinstance(value, StandIn):
        return about(value).key
    if isinstance(value, slice):
        return "slice", _written(value.start), _written(value.stop), _written(value.step)
    if isinstance(value, list | tuple):
        return type(value).__name__, [_written(each) for each in value]
    if isinstance(value, dict):
        return [(_written(name), _written(each)) for name, each in value.items()]
    if isinstance(value, str | bytes | int | float | None):
        return value
    return getattr(value, "__qualname__", type(value).__qualname__)


@dataclass
class About:
    """What is known of a stand-in.

    Attributes:
        rank: the rank that holds it.
        key: how it came about.
        text: what messages call it.
        family: as in the tables of APIs.
        name: its qualified name, where it is imported.
        owner: class of the file that it is an instance of, and the attribute's owner of a method.
        is_local: whether other ranks may hold something else.
        wrapped: whether it is a model whose passes all ranks make together, and whether it came out of one.
        is_even: whether all ranks have as many of it: a batch, and what is in it.
        is_unordered: whether each rank goes through it in an order of its own.
        is_set: whether it is a view of keys, from which sets are computed.
        is_number: whether it is a whole number: sets of them have one order everywhere.
        items: what was put into it.
    """

    rank: Owner
    key: str
    text: str = "a value"
    family: str = ""
    name: str = ""
    cls: ClassNode | None = None
    owner: StandIn | None = None
    attribute: str = ""
    is_local: bool = False
    wrapped: str = ""
    has_gradient: bool = False
    is_even: bool = False
    is_unordered: bool = False
    is_set: bool = False
    is_number: bool = False
    items: dict[str, Any] = field(default_factory=dict)


class StandIn:
    """A value of which nothing is known but how it came about."""

    def __init__(self, told: About) -> None:
        object.__setattr__(self, "_distlint", told)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        if name.endswith(_ERRORS) and name[:1].isupper():
            return about(self).rank.error_class(name)
        return about(self).rank.attribute(self, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Return what a call returns, by the tables of APIs."""
        return about(self).rank.call(self, args, options)

    def __bool__(self) -> bool:
        return about(self).rank.decide(self)

    def __iter__(self) -> Iterator[Any]:
        rank, parts = about(self).rank, _unpacked(sys._getframe(1))
        return rank.items(self) if parts is None else iter([rank.item(self, number) for number in range(parts)])

    def __getitem__(self, index: Any) -> Any:
        told = about(self)
        known = told.items.get(key_of(index))
        return told.rank.item(self, index) if known is None else known

    def __setitem__(self, index: Any, value: Any) -> None:
        told = about(self)
        told.items[key_of(index)] = value
        told.key = key_of("set", told.key, index, value)
        told.is_local = told.is_local or (isinstance(value, StandIn) and about(value).is_local)

    def __delitem__(self, index: Any) -> None:
        about(self).items.pop(key_of(index), None)

    def __contains__(self, value: Any) -> bool:
        return bool(derive("in", self, value))

    def __eq__(self, other: object) -> Any:
        if isinstance(other, StandIn) and about(other).key == about(self).key:
            return True
        return derive("eq", self, other)

    def __hash__(self) -> int:
        return hash(about(self).key)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self

    def __aiter__(self) -> Any:
        return _later(iter(self))

    def __int__(self) -> int:
        return 0

    def __float__(self) -> float:
        return 0.0

    def __str__(self) -> str:
        return about(self).text

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        return f"{about(self).key}"


def _unpacked(frame: FrameType) -> int | None:
    """Return into how many parts the code at hand takes a value apart (``x, y = batch``), or None."""
    code, place = frame.f_code.co_code, frame.f_lasti
    operation, argument = dis.opname[code[place]], code[place + 1]
    if operation == "UNPACK_SEQUENCE":
        return argument
    return argument + 1 if operation == "UNPACK_EX" else None


async def _later(items: Iterator[Any]) -> Any:
    for each in items:
        yield each


def about(value: StandIn) -> About:
    """Return what is known of a stand-in."""
    told: About = object.__getattribute__(value, "_distlint")
    return told


def derive(how: str, *parts: Any, text: str = "", **known: Any) -> StandIn:
    """Return a stand-in for what is computed from other values, one of them a stand-in."""
    whole = [about(each) for each in _flat(parts) if isinstance(each, StandIn)]
    defaults = {
        "is_local": any(each.is_local for each in whole),
        "has_gradient": any(each.has_gradient for each in whole),
    }
    rank = whole[0].rank
    return StandIn(About(rank, key_of(how, *parts), text or rank.text_here(), **{**defaults, **known}))


def _flat(parts: object) -> Iterator[object]:
    """What is in tuples, lists and dicts."""
    if isinstance(parts, list | tuple):
        for each in parts:
            yield from _flat(each)
    elif isinstance(parts, dict):
        yield from _flat(list(parts.values()))
    else:
        yield parts


def has_stand_in(*parts: object) -> bool:
    """True if there is a stand-in in values."""
    return any(isinstance(each, StandIn) for each in _flat(parts))


def _operator(name: str) -> Callable[..., StandIn]:
    def operate(self: StandIn, *others: Any) -> StandIn:
        return derive(name, self, *others, is_unordered=about(self).is_set and name in _OF_SETS)

    return operate


for _name in (*_TWO.split(), *_ONE.split()):
    setattr(StandIn, f"__{_name}__", _operator(_name))
