"""All rules, by their codes: each is a module of this folder."""

from __future__ import annotations

import importlib
import pkgutil

from distlint.rules.base import Rule


def _load() -> dict[str, type[Rule]]:
    found = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("dl"):
            code = module.name.upper()
            found[code] = getattr(importlib.import_module(f"{__name__}.{module.name}"), code)
    return found


RULES: dict[str, type[Rule]] = _load()
