"""Which attributes a class's ``update`` assigns and ``compute`` reads, whatever way it is written."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from distmetrics.state.adapters.assigned import assigned


class Library:
    """Stands for the library's base class: what it does is its own bookkeeping."""

    def add_state(self, name: str, default: Any) -> None: ...

    def reset(self) -> None:
        self.count = 0


class Base(Library):
    def update(self, x: Any) -> None:
        self.a = x

    def compute(self) -> Any:
        return self.a


def logged(method: Any) -> Any:
    @functools.wraps(method)
    def wrapper(*args: Any) -> Any:
        return method(*args)

    return wrapper


class Inherits(Base):
    pass


class CallsSuper(Base):
    def update(self, x: Any) -> None:
        super().update(x)
        self.b = x

    def compute(self) -> Any:
        return super().compute(), self.b


class CallsBase(Base):
    def update(self, x: Any) -> None:
        Base.update(self, x)


class CallsSuperInMethod(Base):
    def _also(self, x: Any) -> None:
        self.b = x

    def update(self, x: Any) -> None:
        self._also(x)
        super(CallsSuperInMethod, self).update(x)  # noqa: UP008

    def compute(self) -> Any:
        return [self.a for _ in range(2) if self.b]


class Decorated(Base):
    @logged
    def update(self, this: Any) -> None:
        self.a = this


class OwnNameOfSelf(Library):
    def update(me, x: Any) -> None:  # noqa: N805
        me.a = x

    def compute(me) -> Any:  # noqa: N805
        return me.a


class ByProperty(Base):
    @property
    def value(self) -> Any:
        return self.a

    @functools.cached_property
    def other(self) -> Any:
        return self.b

    def update(self, x: Any) -> None:
        self.a = self.b = self.c = x

    def compute(self) -> Any:
        return self.value + self.other


class InClosure(Base):
    def update(self, x: Any) -> None:
        def keep() -> None:
            self.a = x

        keep()

    def compute(self) -> Any:
        return sorted([1, 2], key=lambda y: y * self.a)


class HandsItselfOver(Base):
    def update(self, x: Any) -> None:
        self.a, self.b = x, self.c

    def compute(self) -> Any:
        return len([self])


class NotRead(Base):
    def compute(self) -> Any:
        return 0


class Resets(Base):
    def update(self, x: Any) -> None:
        self.reset()

    def compute(self) -> Any:
        return self.count


class AddsUp(Base):
    def update(self, x: Any) -> None:
        self.a += x
        self.b = 1 - 0.5 * self.b
        self.c["x"] = self.d.e = 1
        self.d.e += 1

    def compute(self) -> Any:
        return self.a + self.b + self.c + self.d


class AddsUpOnceSet(Base):
    def update(self, x: Any) -> None:
        if x:
            self.a = 0
        self.a += x


class Fresh(Base):
    """Set anew in each update, whatever follows."""

    def update(self, x: Any) -> None:
        self.a = x
        self.a = self.a.float()
        self.a += 1


class Derives(Base):
    def update(self, x: Any) -> None:
        self.a = max(self.a, x)
        _, self.b, (self.c, _) = divmod(self.b, x)

    def compute(self) -> Any:
        return self.a + self.b + self.c


class SetsOnce(Base):
    def update(self, x: Any) -> None:
        if self.a is None:
            self.a = x.shape[self.b + 1]


class AddsStates(Base):
    def update(self, x: Any) -> None:
        self.add_state("a", x)
        self.a = x


class StateInOtherMode(Base):
    def __init__(self) -> None:
        for name in ("a", "b"):
            self.add_state(name, 0)


class Calls(Base):
    """Methods call each other, around in a circle."""

    def update(self, x: Any) -> None:
        self.more(x)

    def more(self, x: Any) -> None:
        self.a = x
        self.update(x)


class Several(Base):
    def update(*args: Any) -> None:  # type: ignore[misc, override]
        args[0].a = 1


WANTED: dict[type, dict[str, str]] = {
    Inherits: {"a": "last"},
    CallsSuper: {"a": "last", "b": "last"},
    CallsBase: {"a": "last"},
    CallsSuperInMethod: {"a": "last", "b": "last"},
    Decorated: {"a": "last"},
    OwnNameOfSelf: {"a": "last"},
    ByProperty: {"a": "last", "b": "last"},
    InClosure: {"a": "last"},
    HandsItselfOver: {"a": "last", "b": "last"},
    NotRead: {},
    Resets: {},
    AddsUp: {"a": "alone", "b": "alone"},
    AddsUpOnceSet: {"a": "alone"},
    Fresh: {"a": "last"},
    Derives: {"a": "equal", "b": "equal", "c": "last"},
    SetsOnce: {"a": "last"},
    AddsStates: {},
    StateInOtherMode: {},
    Calls: {"a": "last"},
    Several: {},
}


@pytest.mark.parametrize("kind", WANTED, ids=lambda kind: kind.__name__)
def test_what_is_found(kind: type) -> None:
    found = assigned(kind, Library)
    assert dict(found.learned) == WANTED[kind]
    assert found.adds_states == (kind is AddsStates)
