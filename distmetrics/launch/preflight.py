"""What cannot be sent to another process, by the attribute that holds it.

Pickle's own error names a type and a line in the standard library.
"""

import contextlib
import gc
import importlib.util
import inspect
import io
import re
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from distmetrics.call_site import short_path


class Unpicklable(NamedTuple):
    """A part of an object that cannot be pickled.

    Attributes:
        path: the way to it: ``model.transforms[2].fn``.
        what: what it is: ``a lambda``.
        do: what to put in its place.
        where: where it was made, as far as that can be found out: ``defined at data.py:14``.
    """

    path: str
    what: str
    do: str
    where: str = ""

    def __str__(self) -> str:
        where = f" {self.where}" if self.where else ""
        return f"{self.path} is {self.what}{where}; {self.do}"


def find_unpicklable(
    obj: Any, name: str = "obj", *, by_value: bool | None = None
) -> list[Unpicklable]:
    """Find what stops an object from being sent to another process, such as a rank of ddp_spawn.

    Args:
        obj: a model, a loader, a data set, a callback, a function, or anything that holds these.
        name: what to call it in the answer.
        by_value: whether functions and classes may be sent as code, which takes cloudpickle;
            default True if it is installed. Pass False for spawned workers of a ``DataLoader``.

    Returns:
        the parts that cannot be sent, each as a named tuple ``(path, what, do, where)`` whose
        ``str()`` is a sentence; an empty list if the whole object can be sent.

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
    parts = _named(obj, name, _to_blame(obj, by_value))
    return [Unpicklable(part.path, *_kind(part.value), _where(part)) for part in parts]


def _to_blame(obj: Any, by_value: bool) -> dict[int, Any]:
    """Return by identity what stops an object: what pickle saw last, each time that it failed."""
    base: Any = importlib.import_module("cloudpickle" if by_value else "pickle").Pickler
    blamed: dict[int, Any] = {}

    class Probe(base):  # type: ignore[misc]
        last: Any = None

        def persistent_id(self, part: Any) -> Any:
            # Tensors always travel and may be large.
            if id(part) in blamed or type(part) in (torch.Tensor, torch.nn.Parameter):
                return "left out"
            self.last = part
            return None

    while True:
        probe = Probe(io.BytesIO(), protocol=4)
        try:
            probe.dump(obj)
        except Exception as error:  # noqa: BLE001  (any class may raise anything from it)
            # Where the stack ends says nothing.
            part = obj if "recursion" in str(error) else probe.last
            blamed[id(part)] = part
        else:
            return blamed


class _Member(NamedTuple):
    """A part of the object, the way to it, and the object of which it is an attribute."""

    value: Any
    path: str
    owner: Any = None


def _named(obj: Any, name: str, blamed: dict[int, Any]) -> list[_Member]:
    """Return the parts that are to blame, with the shortest way to each."""
    parts = {id(obj): _Member(obj, name)}
    queue = deque(parts.values())
    while queue and not blamed.keys() <= parts.keys():
        for part in _inside(queue.popleft()):
            if parts.setdefault(id(part.value), part) is part:
                queue.append(part)
    return [parts.get(key, _Member(value, f"a part of {name}")) for key, value in blamed.items()]


def _inside(part: _Member) -> Iterator[_Member]:
    """List what an object holds: items and attributes, then also what has no name of its own."""
    value, path, _ = part
    if isinstance(value, type | types.ModuleType | types.FunctionType):
        return
    items = dict(enumerate(value)) if isinstance(value, list | tuple | deque) else value
    if isinstance(items, dict):
        for key, item in items.items():
            yield _Member(item, f"{path}[{key!r}]")
    modules = value._modules if isinstance(value, torch.nn.Module) else {}
    for name, item in {**modules, **getattr(value, "__dict__", {})}.items():
        step = f"[{name}]" if name.isdigit() else f".{name}"
        yield _Member(item, path + step, value)
    for item in gc.get_referents(value):  # a partial's arguments, say, and its class
        yield _Member(item, path)


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


def _where(part: _Member) -> str:
    """Return where a value was defined or assigned, or "" where there is no source to tell."""
    code = getattr(part.value, "__code__", getattr(part.value, "gi_code", None))
    if isinstance(code, types.CodeType):
        return f"defined at {short_path(code.co_filename)}:{code.co_firstlineno}"
    attribute = part.path.rpartition(".")[2]
    assignment = re.compile(rf"\bself\.{re.escape(attribute)}\b\s*(:[^=]+)?=(?!=)")
    for cls in type(part.owner).__mro__:
        with contextlib.suppress(OSError, TypeError):  # typed at a prompt, or C's
            lines, start = inspect.getsourcelines(cls)
            for number, text in enumerate(lines, start):
                if assignment.search(text):
                    return f"assigned at {short_path(inspect.getfile(cls))}:{number}"
    return ""
