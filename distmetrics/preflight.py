"""What cannot be sent to another process, by the attribute that holds it.

Pickle's own error names a type and a line in the standard library. What helps is the way from the
object at hand to the part that is to blame, where that part was made, and what to put in its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import io
import pickle
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch


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
        return f"{self.path} is {' '.join(filter(None, (self.what, self.where)))}; {self.do}"


def find_unpicklable(
    obj: Any, name: str = "obj", *, by_value: bool | None = None
) -> list[Unpicklable]:
    """Find what stops an object from being sent to another process, such as a rank of
    ``ddp_spawn``.

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
    search = _Search(_has_cloudpickle() if by_value is None else by_value)
    try:
        search.visit(_Part(obj, name))
    except RecursionError:
        return [
            Unpicklable(
                name,
                "nested too deeply to be pickled",
                "",
                "raise sys.setrecursionlimit, or flatten it",
            )
        ]
    return search.found


class _Part(NamedTuple):
    """A part of the object and the way to it; ``inside`` names the function whose variable it is.

    ``owner`` and ``attribute`` say where it is assigned, if it is an attribute.
    """

    value: Any
    path: str
    inside: str = ""
    owner: Any = None
    attribute: str = ""

    def step(self, step: str, value: Any, attribute: str = "") -> _Part:
        return _Part(value, self.path + step, self.inside, self.value, attribute)


class _Search:
    def __init__(self, by_value: bool) -> None:
        self.found: list[Unpicklable] = []
        self._by_value = by_value
        self._failed: dict[
            int, Any
        ] = {}  # keeps its values alive: an id is free again once they are gone

    def visit(self, part: _Part) -> bool:
        """Return whether the part can be pickled; where it can't, note what in it is to blame."""
        if id(part.value) in self._failed:
            return False
        if _can_be_pickled(part.value, self._by_value):
            return True
        self._failed[id(part.value)] = part.value
        whole = [self.visit(inner) for inner in _parts(part, self._by_value)]
        if all(whole):
            place = part.path + (f" in {part.inside}" if part.inside else "")
            self.found.append(_described(part.value, place, part.owner, part.attribute))
        return False


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


def _is_plain_data(value: Any) -> bool:
    """Whether it is a tensor, which always travels and may be large."""
    return type(value) in (torch.Tensor, torch.nn.Parameter)


class _Probe(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return "tensor" if _is_plain_data(obj) else None


def _can_be_pickled(value: Any, by_value: bool) -> bool:
    with contextlib.suppress(Exception):  # any class may raise anything from its own pickling
        (_by_value_probe() if by_value else _Probe)(_Nowhere(), protocol=4).dump(value)
        return True
    return False


@functools.cache
def _by_value_probe() -> Any:
    cloudpickle = importlib.import_module("cloudpickle")
    return type("_ByValueProbe", (cloudpickle.Pickler,), {"persistent_id": _Probe.persistent_id})


def _has_cloudpickle() -> bool:
    return importlib.util.find_spec("cloudpickle") is not None


def _parts(part: _Part, by_value: bool) -> Iterator[_Part]:
    """List what an object consists of as pickle sees it, each with the way one would write to it."""
    value = part.value
    if type(value) is dict:
        yield from (_key(part, key) for key in value)
        yield from (part.step(f"[{key!r}]", item) for key, item in value.items())
    elif type(value) in (list, tuple, set, frozenset):
        yield from (part.step(f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from (
            part.step(f".{name}", item) for name, item in zip(value._fields, value, strict=True)
        )
    elif isinstance(value, types.FunctionType | type):
        yield from _parts_of_code(part) if by_value else ()
    elif isinstance(value, types.MethodType):
        yield part.step(".__self__", value.__self__)
    elif isinstance(value, functools.partial):
        yield part.step(".func", value.func)
        yield from (part.step(f".args[{index}]", item) for index, item in enumerate(value.args))
        yield from (part.step(f".keywords[{key!r}]", item) for key, item in value.keywords.items())
    else:
        yield from _parts_of_object(part)


def _key(part: _Part, key: Any) -> _Part:
    return part.step(f" (the key {key!r})", key)


def _parts_of_code(part: _Part) -> Iterator[_Part]:
    """List what a function or class needs to travel as code: its variables."""
    code = part.value
    if isinstance(code, type):
        members = ((name, item) for name, item in vars(code).items() if not name.startswith("__"))
        yield from (part.step(f".{name}", item) for name, item in members)
        return
    inside = part.path + (f" in {part.inside}" if part.inside else "")
    variables: dict[str, Any] = {
        n: code.__globals__[n] for n in code.__code__.co_names if n in code.__globals__
    }
    for name, cell in zip(code.__code__.co_freevars, code.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            variables[name] = cell.cell_contents
    yield from (_Part(item, name, inside) for name, item in variables.items())
    yield from (
        part.step(f".__defaults__[{index}]", item)
        for index, item in enumerate(code.__defaults__ or ())
    )


def _parts_of_object(part: _Part) -> Iterator[_Part]:
    """List class, arguments, state and items of any other object, as its ``__reduce_ex__`` gives
    them.
    """
    try:
        reduced = part.value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001  (its own pickling fails, whatever it says: it is to blame itself)
        return
    if isinstance(reduced, str):
        return
    make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    if getattr(make, "__name__", "") == "__newobj__":
        yield part._replace(value=arguments[0], owner=None)
        arguments = arguments[1:]
    else:
        yield part.step(".__reduce__()[0]", make)
    yield from (
        part.step(f".__reduce__()[1][{index}]", item) for index, item in enumerate(arguments)
    )
    yield from _parts_of_state(part, state)
    yield from (part.step(f"[{index}]", item) for index, item in enumerate(items or ()))
    yield from (part.step(f"[{key!r}]", item) for key, item in pairs or ())


def _parts_of_state(part: _Part, state: Any) -> Iterator[_Part]:
    names = (
        [field.name for field in dataclasses.fields(part.value)]
        if dataclasses.is_dataclass(part.value)
        else []
    )
    if isinstance(state, list) and len(state) == len(names):  # a frozen dataclass with slots
        state = dict(zip(names, state, strict=True))
    with_slots = isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict)
    states = (
        [inner for inner in state if inner is not None]
        if with_slots
        else []
        if state is None
        else [state]
    )
    for inner in states:
        if not isinstance(inner, Mapping):
            yield part.step(".__getstate__()", inner)
            continue
        for name, item in inner.items():
            if name in ("_modules", "_parameters", "_buffers") and isinstance(item, Mapping):
                yield from (
                    part.step(_child(part.value, child), value, child)
                    for child, value in item.items()
                )
            else:
                yield part.step(f".{name}", item, str(name))


def _child(owner: Any, name: str) -> str:
    """Write the way to a child module: ``layers[0]``, ``heads['a']``, ``.layer``."""
    if name.isdigit():
        return f"[{name}]"
    return f"[{name!r}]" if isinstance(owner, torch.nn.ModuleDict) else f".{name}"


_TOP_LEVEL = "move it to the top level of a module"
_PER_PROCESS = "make it where it is used, in each process, and leave it out in __getstate__"
_KINDS: list[tuple[tuple[str, ...], str, str]] = [
    (
        ("lock", "RLock", "Lock", "Condition", "Event", "Semaphore", "Barrier"),
        "a lock",
        _PER_PROCESS,
    ),
    (("Thread", "Process", "ThreadPoolExecutor", "Popen"), "a thread or process", _PER_PROCESS),
    (
        ("socket", "Connection", "Cursor", "SSLContext"),
        "a connection",
        "open it where it is used, in each process",
    ),
    (
        ("generator", "async_generator", "coroutine"),
        "a generator",
        "keep a list, or make it where it is used",
    ),
    (("module",), "a module", "import it where it is used"),
    (
        ("weakref", "ReferenceType", "WeakSet", "WeakKeyDictionary"),
        "a weak reference",
        _PER_PROCESS,
    ),
]


def _described(value: Any, path: str, owner: Any, attribute: str) -> Unpicklable:
    if isinstance(value, types.FunctionType):
        at = f"defined at {_place(value.__code__.co_filename, value.__code__.co_firstlineno)}"
        if value.__name__ == "<lambda>":
            do = "use functools.partial, or a function at the top level of a module"
            return Unpicklable(path, "a lambda", at, do)
        return Unpicklable(
            path,
            f"the local function {value.__qualname__}",
            at,
            f"{_TOP_LEVEL}, or use a callable class",
        )
    if isinstance(value, type):
        return Unpicklable(
            path, f"of the local class {value.__qualname__}", _defined(value), _TOP_LEVEL
        )
    if isinstance(value, io.IOBase):
        name = getattr(value, "name", "")
        what = f"an open file ({name})" if isinstance(name, str) and name else "an open file"
        do = "keep its path, and open it where it is used"
        return Unpicklable(path, what, _assigned(owner, attribute), do)
    names = {base.__name__ for base in type(value).__mro__}
    for kinds, what, do in _KINDS:
        if names.intersection(kinds):
            code = getattr(value, "gi_code", None)
            at = (
                f"defined at {_place(code.co_filename, code.co_firstlineno)}"
                if code
                else _assigned(owner, attribute)
            )
            return Unpicklable(path, what, at, do)
    article = "an" if type(value).__name__[0] in "aeiouAEIOU" else "a"
    return Unpicklable(
        path, f"{article} {type(value).__name__}", _assigned(owner, attribute), _PER_PROCESS
    )


def _defined(cls: type) -> str:
    with contextlib.suppress(
        OSError, TypeError
    ):  # no source: typed at a prompt, or made by a C module
        return (
            f"defined at {_place(inspect.getsourcefile(cls) or '', inspect.getsourcelines(cls)[1])}"
        )
    return ""


def _assigned(owner: Any, attribute: str) -> str:
    """Find the line of the owner's class that assigns the attribute."""
    assignment = re.compile(rf"\bself\.{re.escape(attribute)}\b\s*(:[^=]+)?=(?!=)")
    for cls in type(owner).__mro__ if attribute else ():
        with contextlib.suppress(OSError, TypeError):
            lines, start = inspect.getsourcelines(cls)
            for number, line in enumerate(lines, start):
                if assignment.search(line):
                    return f"assigned at {_place(inspect.getsourcefile(cls) or '', number)}"
    return ""


def _place(file: str, line: int) -> str:
    path = Path(file)
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path.name}:{line}"
