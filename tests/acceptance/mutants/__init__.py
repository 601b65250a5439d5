"""The product, broken in one place at a time, by patches of what users see.

Each mutant is a function that patches the product: its docstring says what is broken, its
decorator which tests are to fail. ``python -m tests.acceptance.mutants`` runs those tests under
each mutant and writes ``table.md``.

A mutant reaches every process that a test starts: ``site/sitecustomize.py`` applies it where Python
starts.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """A way to break the product, and the tests that must notice."""

    name: str
    tests: tuple[str, ...]
    apply: Callable[[], None]

    @property
    def area(self) -> str:
        """The module that it stands in."""
        return self.name.partition(".")[0]

    @property
    def breaks(self) -> str:
        """One sentence: what is wrong under it."""
        return (self.apply.__doc__ or "").strip()


_FOUND: dict[str, Mutant] = {}


def mutant(*tests: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Make a mutant of a function that ``tests`` catch, such as ``test_sync.py::test_f1``."""

    def decorate(apply: Callable[[], None]) -> Callable[[], None]:
        area = apply.__module__.rpartition(".")[2]
        name = f"{area}.{apply.__name__}"
        _FOUND[name] = Mutant(name, tests, apply)
        return apply

    return decorate


def find(name: str) -> Mutant:
    """Return the mutant ``area.function``; no other area is imported for it."""
    importlib.import_module(f"{__name__}.{name.partition('.')[0]}")
    return _FOUND[name]


def mutants() -> list[Mutant]:
    """Return all mutants, in the order of the files and of their lines."""
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("__") and not module.ispkg:
            importlib.import_module(f"{__name__}.{module.name}")
    return list(_FOUND.values())


def patch(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(original)`` in the place of ``owner.name``, of a module or a class."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))
