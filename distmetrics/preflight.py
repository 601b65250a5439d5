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
from collections.abc import Iterable, Iterator
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
        try:
            parts = [*_parts(part, self._by_value)]
        except RecursionError:
            raise
        except Exception:  # noqa: BLE001  (its own pickling fails: it is to blame itself)
            parts = []
        are_whole = [self.visit(inner) for inner in parts]
        if all(are_whole):
            what, do = _kind(part.value)
            self.found.append(Unpicklable(part.path, what, _where(part), do))
        return False


_NAMED = {types.MethodType: ("__self__",), functools.partial: ("func", "args", "keywords")}


def _parts(part: _Visited, by_value: bool) -> Iterator[_Visited]:
    """List what an object consists of as pickle sees it."""
    value = part.value
    if isinstance(value, tuple):
        yield from _items(part, enumerate(value))
    elif isinstance(value, types.FunctionType):
        used = inspect.getclosurevars(value)
        for name, item in {**used.globals, **used.nonlocals}.items() if by_value else ():
            yield part.step(f" (its variable {name})", item)
    elif type(value) in _NAMED:
        for name in _NAMED[type(value)]:
            yield part.step(f".{name}", getattr(value, name))
    elif not isinstance(value, type):
        reduced = value.__reduce_ex__(4)
        if isinstance(reduced, tuple):
            yield part._replace(value=type(value), attribute="")
            yield from _parts_of_object(part, *reduced[1:])


def _items(part: _Visited, items: Iterable[tuple[Any, Any]], of: str = "") -> Iterator[_Visited]:
    return (part.step(f"{of}[{key!r}]", item) for key, item in items)


def _parts_of_object(
    part: _Visited, arguments: Any, state: Any = None, items: Any = None, pairs: Any = None, *_: Any
) -> Iterator[_Visited]:
    """List what ``__reduce_ex__`` gives of another object."""
    yield from _items(part, enumerate(arguments), ".__reduce__()[1]")
    for attributes in state if isinstance(state, tuple) else (state,):  # with slots, or without
        plain = dict(attributes or {})
        for kind in ("_modules", "_parameters", "_buffers"):
            for name, child in (plain.pop(kind, None) or {}).items():
                step = f"[{name}]" if name.isdigit() else f".{name}"
                yield part.step(step, child, name)
        for name, item in plain.items():
            yield part.step(f".{name}", item, name)
    yield from _items(part, enumerate(items or ()))
    yield from _items(part, pairs or ())


_TOP_LEVEL = "move it to the top level of a module"


def _kind(value: Any) -> tuple[str, str]:
    """Return what a value is, and what to put in its place."""
    if isinstance(value, types.FunctionType):
        is_lambda = value.__name__ == "<lambda>"
        what = "a lambda" if is_lambda else f"the local function {value.__qualname__}"
        return what, f"use functools.partial, or {_TOP_LEVEL}"
    if isinstance(value, type):
        return f"of the local class {value.__qualname__}", _TOP_LEVEL
    do = "make it where it is used, in each process, and leave it out in __getstate__"
    return f"a {type(value).__name__}", do


def _where(part: _Visited) -> str:
    """Return where a value was defined or assigned, or "" where there is no source to tell."""
    code = getattr(part.value, "__code__", getattr(part.value, "gi_code", None))
    if isinstance(code, types.CodeType):
        return f"defined at {short_path(code.co_filename)}:{code.co_firstlineno}"
    assignment = re.compile(rf"\bself\.{re.escape(part.attribute)}\b\s*(:[^=]+)?=(?!=)")
    for cls in type(part.owner).__mro__ if part.attribute else ():
        with contextlib.suppress(OSError, TypeError):  # typed at a prompt, or C's
            lines, start = inspect.getsourcelines(cls)
            for number, text in enumerate(lines, start):
                if assignment.search(text):
                    return f"assigned at {short_path(inspect.getfile(cls))}:{number}"
    return ""
