"""All rules, by their codes: each is a module of this folder, imported when it is asked for."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distlint.rules.base import Rule


class _Rules(MutableMapping[str, "type[Rule]"]):
    """The rules by code; telling the codes imports none of them."""

    def __init__(self) -> None:
        names = (module.name for module in pkgutil.iter_modules(__path__))
        codes = [name.upper() for name in names if name.startswith("dl")]
        self._known: dict[str, type[Rule] | None] = dict.fromkeys(codes)

    def __getitem__(self, code: str) -> type[Rule]:
        found = self._known[code]
        if found is None:
            module = importlib.import_module(f"{__name__}.{code.lower()}")
            found = self._known[code] = getattr(module, code)
        return found

    def __setitem__(self, code: str, rule: type[Rule]) -> None:
        self._known[code] = rule

    def __delitem__(self, code: str) -> None:
        del self._known[code]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


RULES: MutableMapping[str, type[Rule]] = _Rules()
