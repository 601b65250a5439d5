"""The page of a rule, for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from distlint.model import Rule


def explain(rule: Rule) -> str:
    """Name, documentation and every example of a rule."""
    parts = [f"{rule.code} {rule.name} ({rule.group}, {rule.severity.value})", rule.page()]
    for example in rule.bad:
        lines = ", ".join(f"line {line}" for line in sorted(example.marks))
        parts.append(f"Bad ({lines}):\n\n{textwrap.indent(example.source.rstrip(), '    ')}")
    parts.extend(f"Good:\n\n{textwrap.indent(source.rstrip(), '    ')}" for source in rule.good)
    parts.append(f"Ignore one place with  # distlint: ignore[{rule.code}] and the reason.")
    return "\n\n".join(parts) + "\n"


def list_rules(rules: Iterable[Rule]) -> str:
    """One line a rule."""
    return "".join(f"{rule.code}  {rule.name:30} {rule.summary()}\n" for rule in rules)
