"""Find what keeps an object from being sent to another process."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["find_unpicklable"]


def find_unpicklable(value: Any, path: str) -> str | None:
    """Return the path of the innermost part of ``value`` that can't be pickled, or None if all of it can.

    >>> from types import SimpleNamespace
    >>> find_unpicklable(SimpleNamespace(size=2, rows=[iter([]), (n for n in [])]), "data")
    'data.rows[1]'
    """
    return _search(value, path, set())


def _search(value: Any, path: str, seen: set[int]) -> str | None:
    if id(value) in seen or _can_be_pickled(value):
        return None
    seen.add(id(value))
    parts = (_search(part, path + step, seen) for step, part in _parts(value))
    return next((found for found in parts if found is not None), path)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """List what an object consists of, and how one writes it: modules as attributes, not as ``_modules['x']``."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    else:
        for name, part in getattr(value, "__dict__", {}).items():
            if name in ("_modules", "_parameters", "_buffers"):
                yield from ((f".{inner}", child) for inner, child in part.items())
            else:
                yield f".{name}", part


def _can_be_pickled(value: Any) -> bool:
    dumps = [pickle.dumps]
    with contextlib.suppress(ImportError):
        import cloudpickle

        dumps.append(cloudpickle.dumps)
    for dump in dumps:
        with contextlib.suppress(Exception):  # any class may raise anything from its own pickling
            dump(value)
            return True
    return False
