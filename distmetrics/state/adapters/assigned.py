"""Which attributes a metric's ``update`` assigns and its ``compute`` reads: found in the bytecode
of its class.

A metric may keep something that is no registered state: the dtype of its last input, a shape that
it has seen. A rank without data lacks it. Only what happens to ``self`` in the methods themselves
is found, and in the methods that they call on it; what a function does that ``self`` is handed to
is not.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from distmetrics.state.spec import Learned, Rule

_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_FILLING = ("EXTENDED_ARG", "NOP", "NOT_TAKEN")
_READS = ("LOAD_ATTR", "LOAD_METHOD")
_PLAIN, _READ, _ESCAPES = "plain", "read", "escapes"


class Assigned(NamedTuple):
    """What ``update`` does to its metric.

    Attributes:
        learned: the attributes that it assigns and that ``compute`` reads, as far as they are no
            states by their names.
        adds_states: whether it calls ``add_state``, so that states have another shape once there is
            data.
        changed: all attributes that it or ``compute`` assigns.
    """

    learned: tuple[Learned, ...]
    adds_states: bool
    changed: frozenset[str]


class _Event(NamedTuple):
    """One use of an attribute of ``self``: read, plainly assigned, or assigned by a rule that its
    old value gives.
    """

    what: str
    name: str
    always: bool = True  # whether no condition was tested before


@functools.lru_cache(maxsize=1024)
def assigned(kind: type, base: type) -> Assigned:
    """Return what a metric's class assigns, in the order of the names.

    Args:
        kind: the class of the metric, with methods ``update`` and ``compute``.
        base: the library's own base class: what its methods do is bookkeeping.
    """
    stop = frozenset(base.__mro__)
    updating = list(_Reader(kind, stop).method("update"))
    computing = list(_Reader(kind, stop).method("compute"))
    read = {event.name for event in computing if event.what == _READ}
    if any(event.what == _ESCAPES for event in computing):  # who knows what reads it there
        read |= {event.name for event in updating}
    changed = {
        event.name for event in (*updating, *computing) if event.what not in (_READ, _ESCAPES)
    }
    names = {event.name for event in updating if event.what not in (_READ, _ESCAPES)} & read
    names -= set(_states(kind, stop))
    learned = tuple(
        [
            Learned(name, _rule([event for event in updating if event.name == name]))
            for name in sorted(names)
        ]
    )
    adds_states = any(event[:2] == (_READ, "add_state") for event in updating)
    return Assigned(learned, adds_states, frozenset(changed))


def _states(kind: type, stop: frozenset[type]) -> Iterator[str]:
    """Yield names of states: also those that a metric has with other arguments only, as exact
    curves have no bins.
    """
    for owner in kind.__mro__:
        codes = [] if owner in stop else list(map(_code_of, vars(owner).values()))
        for code in codes:
            for value in (
                code.co_consts if code is not None and "add_state" in code.co_names else ()
            ):
                yield from (
                    text
                    for text in (value if isinstance(value, tuple) else (value,))
                    if isinstance(text, str)
                )


def _rule(events: Sequence[_Event]) -> Rule:
    """Return how an attribute becomes that of all ranks, from what is done with it in one update."""
    first = events[0]
    if first.what == _PLAIN and first.always:
        return "last"  # nothing of its old value is left, whatever follows
    found = {event.what for event in events}
    return "alone" if "alone" in found else "equal" if "equal" in found else "last"


class _Reader:
    """Reads methods of one class, and those that they call, in the order of their instructions;
    each once.
    """

    def __init__(self, kind: type, stop: frozenset[type]) -> None:
        self._mro = kind.__mro__
        self._stop = stop
        self._seen: set[CodeType] = set()

    def method(self, name: str, after: type | None = None) -> Iterator[_Event]:
        """Yield the events in a method, or of a class before ``after`` in the order of inheritance."""
        found = self._find(name, after)
        if found is not None and found[0].co_argcount and found[0] not in self._seen:
            self._seen.add(found[0])
            code, owner = found
            yield from self._code(code, owner, code.co_varnames[0], name)

    def _find(self, name: str, after: type | None = None) -> tuple[CodeType, type] | None:
        """Return the code of a method or property of the user's or library's class, and the class
        that defines it.
        """
        mro = self._mro if after is None else self._mro[self._mro.index(after) + 1 :]
        for owner in mro:
            if name in vars(owner):
                code = None if owner in self._stop else _code_of(vars(owner)[name])
                return None if code is None else (code, owner)
        return None

    def _code(self, code: CodeType, owner: type, me: str, method: str) -> Iterator[_Event]:
        steps = [step for step in dis.get_instructions(code) if step.opname not in _FILLING]
        tested, upwards = (
            0,
            False,
        )  # up to which offset a condition decides; whether `super` was named
        for index, step in enumerate(steps):
            always = step.offset >= tested
            if step.opcode in _JUMPS:
                tested = max(tested, step.argval)  # backwards for loops, which changes nothing
            if isinstance(step.argval, CodeType) and me in step.argval.co_freevars:
                yield from self._code(step.argval, owner, me, method)
            elif step.opname == "LOAD_GLOBAL" and step.argval == "super":
                upwards = True
            elif step.opname.startswith("LOAD_SUPER") or (
                upwards and step.opname in _READS and not _is_me(steps[index - 1], me)
            ):
                upwards = False
                yield from _conditioned(self.method(step.argval, owner), always)
            elif step.opname == "STORE_ATTR" and _is_me_below(steps, index, me):
                yield _Event(_assignment(steps, index, me), step.argval, always)
            elif _loads(step, me):
                yield from _conditioned(self._use(steps, index, owner, me, method), always)

    def _use(
        self, steps: Sequence[dis.Instruction], index: int, owner: type, me: str, method: str
    ) -> Iterator[_Event]:
        """Yield what is done with ``self`` after it was loaded."""
        after = steps[index + 1]
        if _is_me(steps[index], me):
            if after.opname == "COPY":  # self.x += …
                after = steps[index + 2]
            if after.opname in _READS:
                found = self._find(after.argval)
                yield from (
                    [_Event(_READ, after.argval)] if found is None else self.method(after.argval)
                )
                return
            if after.opname in ("STORE_ATTR", "DELETE_ATTR") or after.opname.startswith(
                "LOAD_SUPER"
            ):
                return
        yield _Event(_ESCAPES, "")
        yield from self.method(method, owner)  # most often Base.update(self, …)


def _conditioned(events: Iterator[_Event], always: bool) -> Iterator[_Event]:
    return (event._replace(always=event.always and always) for event in events)


def _code_of(value: Any) -> CodeType | None:
    if isinstance(value, property | functools.cached_property):
        value = value.fget if isinstance(value, property) else value.func
    value = inspect.unwrap(value) if callable(value) else value
    return value.__code__ if isinstance(value, FunctionType) else None


def _loads(step: dis.Instruction, me: str) -> bool:
    """Whether an instruction loads ``self``; newer Pythons load two variables by one."""
    if not step.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "STORE_FAST_LOAD_FAST")):
        return False
    names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    return me in (names[1:] if step.opname.startswith("STORE") else names)


def _is_me(step: dis.Instruction, me: str) -> bool:
    """Whether ``self`` is on top of the stack after an instruction."""
    return (
        _loads(step, me)
        and (step.argval[-1] if isinstance(step.argval, tuple) else step.argval) == me
    )


def _is_me_below(steps: Sequence[dis.Instruction], index: int, me: str) -> bool:
    """Whether what is assigned to is an attribute of ``self``."""
    return _is_me(steps[index - 1], me) or _copied(steps, index, me) is not None


def _copied(steps: Sequence[dis.Instruction], index: int, me: str) -> int | None:
    """Return where ``self.x += …``, which ends at ``index``, has copied ``self``."""
    if steps[index - 1].opname != "SWAP":
        return None
    for at in range(index - 2, 1, -1):
        if (steps[at].opname, steps[at].argval) == ("LOAD_ATTR", steps[index].argval):
            return at - 1 if steps[at - 1].opname == "COPY" and _is_me(steps[at - 2], me) else None
    return None


def _assignment(steps: Sequence[dis.Instruction], index: int, me: str) -> str:
    """Return how ``self.x`` is assigned at ``index``: plainly, or from what was in it before.

    The instructions that make the value are those before it, back to where the stack was lower by
    one. Arithmetic with the old value accumulates; a function of it may, or may bring it to another
    device.
    """
    if _copied(steps, index, me) is not None:
        return "alone"
    before = steps[index - 1]
    if isinstance(before.argval, tuple) and before.opname.startswith("LOAD"):
        return _PLAIN  # of a local variable
    reads, sums, needed = False, False, 2 if before.opname.startswith("STORE") else 1
    for at in range(index - 2, -1, -1):
        step = steps[at]
        own = step.opname in _READS and step.argval == steps[index].argval
        reads = reads or (own and _is_me(steps[at - 1], me))
        sums = sums or step.opname == "BINARY_OP"
        if step.opname.startswith("UNPACK"):  # a, self.x = value: all targets are of one value
            needed = 1
            continue
        needed -= dis.stack_effect(step.opcode, step.arg, jump=False)
        if needed <= 0:
            break
    return _PLAIN if not reads else "alone" if sums else "equal"
