"""What the user has declared of metrics; it goes before the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distlint import averageable
from distlint.facts.project import declares

if TYPE_CHECKING:
    from distlint.facts.module import ModuleFacts

_DECLARED = "declared so in [tool.distlint]"


def reason_against(facts: ModuleFacts, full: str) -> str | None:
    """Why the mean over ranks of a metric is wrong; None for averageable and unknown ones.

    Args:
        facts: the module, which knows the user's settings.
        full: the resolved name of the metric.
    """
    settings, name = facts.project.settings, facts.absolute(full)
    if declares(settings.averageable, name) is not None:
        return None
    declared = declares(settings.non_averageable, name)
    if declared is not None:
        return settings.non_averageable[declared] or _DECLARED
    return averageable.reason_against(full)
