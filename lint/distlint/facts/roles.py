"""What a kind of rank makes of a test, and which kinds of ranks tests can tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distlint.facts.rank_names import GLOBAL_ZERO, LOCAL_ZERO


@dataclass(frozen=True)
class Same:
    """A test with the same, unknown outcome on every rank; ``text`` is equal for equal tests."""

    text: str
    negated: bool = False


Truth = bool | Same
Role = Mapping[str, bool]


def negate(value: Truth) -> Truth:
    """The outcome of ``not``."""
    return not value if isinstance(value, bool) else Same(value.text, not value.negated)


def first(role: Role) -> Role:
    """The role of the first rank: a helper's summary does not depend on who calls it."""
    return {key: "==0" in key for key in role} | {GLOBAL_ZERO: True, LOCAL_ZERO: True}


def roles(keys: set[str]) -> list[dict[str, bool]]:
    """The kinds of ranks that tests on these keys can tell apart, an ordinary rank first."""
    found: list[dict[str, bool]] = [dict.fromkeys(keys, False)]
    for key in sorted(keys):
        role = dict.fromkeys(keys, False)
        role[key] = True
        if key == GLOBAL_ZERO and LOCAL_ZERO in keys:
            role[LOCAL_ZERO] = True
        if role not in found:
            found.append(role)
    return found
