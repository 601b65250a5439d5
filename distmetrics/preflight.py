"""What cannot be sent to another process, by the attribute that holds it.

Pickle's own error names a type and a line in the standard library. What helps is the way from the
object at hand to the part that is to blame, where that part was made, and what to put in its place.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import io
import pickle
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from distmetrics.call_site import short_path


@dataclass(frozen=True, slots=True)
class Unpicklable:
    """A part of an object that cannot be pickled.

    Attributes:
        path: the way to it: ``model.transforms[2].fn``.
        what: what it is: ``a lambda``.
        where: where it was made, as far as that can be found out: ``defined at data.py:14``.
        do: what to put in its place.
    """

    path: str
    what: str
    where: str
    do: str

    def __str__(self) -> str:
        where = f" {self.where}" if self.where else ""
        return f"{self.path} is {self.what}{where}; {self.do}"


def find_unpicklable(
    obj: Any,
    name: str = "obj",
    *,
    by_value: bool | None = None,
) -> list[Unpicklable]:
    """Find what stops an object from being sent to another process, such as a rank of ddp_spawn.

    Args:
        obj: a model, a loader, a data set, a callback, a function, or anything that holds such.
        name: what to call it in the answer.
        by_value: whether functions and classes may travel as code, which takes cloudpickle;
            default: where it is installed. Workers of a ``DataLoader`` that are spawned cannot, so
            ask with ``False`` for them.

    Returns: each part that is to blame, once; nothing where the whole object can be sent.
        ``str(part)`` is a sentence.

    >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    >>> find_unpicklable(model)
    []
    >>> model[0].scale = (n for n in range(3))
    >>> found = find_unpicklable(model, "model")
    >>> found[0].path, found[0].what
    ('model[0].scale', 'a generator')
    """
    if by_value is None:
        by_value = importlib.util.find_spec("cloudpickle") is not None
    search = _Search(by_value)
    try:
        search.visit(_Visited(obj, name))
    except RecursionError:
        return [Unpicklable(name, "nested too deeply", "", "flatten it")]
    return search.found


class _Visited(NamedTuple):
    """A part of the object, the way to it, and the object of which it is an attribute."""

    value: Any
    path: str
    owner: Any = None
    attribute: str = ""

    def step(self, step: str, value: Any, attribute: str = "") -> _Visited:
        return _Visited(value, self.path + step, self.value, attribute)


class _Search:
    def __init__(self, by_value: bool) -> None:
        self.found: list[Unpicklable] = []
        self._by_value = by_value
        base: Any = importlib.import_module("cloudpickle").Pickler if by_value else pickle.Pickler

        class Probe(base):  # type: ignore[misc]
            """Leaves out tensors, which always travel and may be large."""

            def persistent_id(self, obj: Any) -> Any:
                return "tensor" if type(obj) in (torch.Tensor, torch.nn.Parameter) else None

        self._probe = Probe
        # Keeps its values alive: an id is free again once they are gone.
        self._failed: dict[int, Any] = {}

    def visit(self, part: _Visited) -> bool:
        """Return True if the part can be pickled; else note what in it is to blame."""
        if id(part.value) in self._failed:
            return False
        with contextlib.suppress(Exception):  # any class may raise anything when it is pickled
            self._probe(io.BytesIO(), protocol=4).dump(part.value)
            return True
        self._failed[id(part.value)] = part.value
        are_whole = [self.visit(inner) for inner in _parts(part, self._by_value)]
        if all(are_whole):
            what, do = _kind(part.value)
            self.found.append(Unpicklable(part.path, what, _where(part), do))
        return False


def _parts(part: _Visited, by_value: bool) -> Iterator[_Visited]:
    """List what an object consists of as pickle sees it."""
    value = part.value
    if isinstance(value, tuple):
        yield from _items(part, "", enumerate(value))
    elif isinstance(value, type):
        for name, member in vars(value).items() if by_value else ():
            if not name.startswith("__"):
                yield part.step(f".{name}", member)
    elif isinstance(value, types.FunctionType):
        for name, item in _variables(value).items() if by_value else ():
            yield part.step(f" (its variable {name})", item)
    elif isinstance(value, types.MethodType):
        yield part.step(".__self__", value.__self__)
    elif isinstance(value, functools.partial):
        for name in ("func", "args", "keywords"):
            yield part.step(f".{name}", getattr(value, name))
    else:
        yield from _parts_of_object(part)


def _items(part: _Visited, of: str, items: Iterable[tuple[Any, Any]]) -> Iterator[_Visited]:
    return (part.step(f"{of}[{key!r}]", item) for key, item in items)


def _variables(fn: types.FunctionType) -> dict[str, Any]:
    """Return what a function needs to travel as code."""
    variables: dict[str, Any] = {"__defaults__": fn.__defaults__}
    with contextlib.suppress(ValueError):  # a variable that has no value yet
        used = inspect.getclosurevars(fn)
        variables |= {**used.globals, **used.nonlocals}
    return variables


def _parts_of_object(part: _Visited) -> Iterator[_Visited]:
    """List class, arguments, state and items of another object, as ``__reduce_ex__`` gives them."""
    try:
        reduced = part.value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001  (its own pickling fails: it is to blame itself)
        return
    if isinstance(reduced, str):
        return
    make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    if getattr(make, "__name__", "") == "__newobj__":
        yield part._replace(value=arguments[0], owner=None)
        arguments = arguments[1:]
    else:
        yield part.step(".__reduce__()[0]", make)
    yield from _items(part, ".__reduce__()[1]", enumerate(arguments))
    yield from _parts_of_state(part, state)
    yield from _items(part, "", enumerate(items or ()))
    for key, item in pairs or ():
        yield part.step(f" (the key {key!r})", key)
        yield part.step(f"[{key!r}]", item)


def _parts_of_state(part: _Visited, state: Any) -> Iterator[_Visited]:
    has_slots = isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict)
    for attributes in state if has_slots else (state,):
        if isinstance(attributes, Mapping):
            plain = dict(attributes)
            for kind in ("_modules", "_parameters", "_buffers"):
                for name, child in (plain.pop(kind, None) or {}).items():
                    step = f"[{name}]" if name.isdigit() else f".{name}"
                    yield part.step(step, child, name)
            for name, item in plain.items():
                yield part.step(f".{name}", item, name)
        elif attributes is not None:
            yield part.step(".__getstate__()", attributes)


_TOP_LEVEL = "move it to the top level of a module"
_PER_PROCESS = "make it where it is used, in each process, and leave it out in __getstate__"


def _kind(value: Any) -> tuple[str, str]:
    """Return what a value is, and what to put in its place."""
    if isinstance(value, types.FunctionType):
        if value.__name__ == "<lambda>":
            return "a lambda", "use functools.partial, or a function at the top level of a module"
        name = value.__qualname__
        return f"the local function {name}", f"{_TOP_LEVEL}, or use a callable class"
    if isinstance(value, type):
        return f"of the local class {value.__qualname__}", _TOP_LEVEL
    if isinstance(value, io.IOBase):
        return "an open file", "keep its path, and open it where it is used"
    name = type(value).__name__
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    return f"{article} {name}", _PER_PROCESS


def _where(part: _Visited) -> str:
    """Return where a value was defined or assigned, or "" where there is no source to tell."""
    value = part.value
    code = getattr(value, "__code__", getattr(value, "gi_code", None))
    if isinstance(code, types.CodeType):  # of a generator inspect gives the line of the function
        return f"defined at {short_path(code.co_filename)}:{code.co_firstlineno}"
    for file, line, _ in _source(value) if isinstance(value, type) else ():
        return f"defined at {short_path(file)}:{line}"
    assignment = re.compile(rf"\bself\.{re.escape(part.attribute)}\b\s*(:[^=]+)?=(?!=)")
    for cls in type(part.owner).__mro__ if part.attribute else ():
        for file, number, text in _source(cls):
            if assignment.search(text):
                return f"assigned at {short_path(file)}:{number}"
    return ""


def _source(cls: type) -> Iterator[tuple[str, int, str]]:
    """Yield file, number and text of each line of a class; none if typed at a prompt, or C's."""
    with contextlib.suppress(OSError, TypeError):
        file = inspect.getsourcefile(cls) or ""
        lines, start = inspect.getsourcelines(cls)
        yield from ((file, number, text) for number, text in enumerate(lines, start))
