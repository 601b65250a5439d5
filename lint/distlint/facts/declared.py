"""What the user has declared of metrics; it goes before the table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from distlint import averageable
from distlint.facts.scopes import LOCAL

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_DECLARED = "declared so in [tool.distlint]"


def reason_against(facts: ModuleFacts, full: str) -> str | None:
    """Why the mean over ranks of a metric is wrong; None for averageable and unknown ones.

    Args:
        facts: the module, which knows the user's settings.
        full: the resolved name of the metric.
    """
    settings = facts.project.settings
    if _declared(full, settings.averageable) is not None:
        return None
    declared = _declared(full, settings.non_averageable)
    if declared is not None:
        return settings.non_averageable[declared] or _DECLARED
    return averageable.reason_against(full)


def _declared(full: str, names: Iterable[str]) -> str | None:
    """The declared name that a resolved one means; names of this file and relative imports match by their end."""
    is_partial = full.startswith((LOCAL, "."))
    end = "." + full.removeprefix(LOCAL).lstrip(".")
    return next((name for name in names if name == full or (is_partial and ("." + name).endswith(end))), None)
