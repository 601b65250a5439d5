"""All rules, by code: one module each, found by looking into this folder."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module

from distlint.model import Rule


def _classes() -> Iterator[type[Rule]]:
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda each: each.name):
        module = import_module(f"{__name__}.{found.name}")
        for each in vars(module).values():
            if inspect.isclass(each) and issubclass(each, Rule) and each.__module__ == module.__name__:
                yield each


RULES: dict[str, Rule] = {rule.code: rule() for rule in _classes()}
