"""What an argument may be, and the one error for a value that is something else.

Classes and functions keep a table of rules by the names of their arguments, for :func:`check`.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from distmetrics.errors import ConfigurationError


class Takes(NamedTuple):
    """What an argument takes."""

    fits: Callable[[Any], bool]
    wanted: str  # follows "must be"
    do: str = ""  # "" where that goes without saying

    def or_none(self, meaning: str = "None") -> Takes:
        """Return what also takes None, which may have a meaning: "None for no limit"."""
        wanted = f"{self.wanted}, or {meaning}"
        return Takes(lambda value: value is None or self.fits(value), wanted, self.do)


def check(who: str, values: Mapping[str, Any], takes: Mapping[str, Takes]) -> None:
    """Raise ConfigurationError for the first of some arguments that is not what it must be.

    >>> check("Trainer", {"detect_anomaly": "no"}, {"detect_anomaly": FLAG})
    Traceback (most recent call last):
    distmetrics.errors.ConfigurationError: Trainer: detect_anomaly must be True or False, got 'no'
    """
    for name, rule in takes.items():
        value = values[name]
        if not rule.fits(value):
            what = f"{who}: {name} must be {rule.wanted}, got {reprlib.repr(value)}"
            raise ConfigurationError(what, do=rule.do)


def refuse_unknown(owner: type, flags: Iterable[str], others: Mapping[str, str]) -> None:
    """Refuse flags that ``owner`` does not take, with advice for those of ``others``."""
    who = owner.__name__
    names = inspect.signature(owner).parameters.keys() - {"unknown"}
    for flag in flags:
        if flag in others:
            raise ConfigurationError(
                f"{who}({flag}=...) is a flag of other trainers, and there is none for it here",
                do=others[flag],
            )
        near = difflib.get_close_matches(flag, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"{who} got an unexpected keyword argument {flag!r}{hint}")


def describe(value: Any) -> str:
    """Say what a wrong argument is: an object of int, say, or the class int itself."""
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    return f"an object of {type(value).__name__}"


def is_metric(value: Any) -> bool:
    """True for a metric object: anything that updates, computes and resets."""
    if isinstance(value, type):
        return False
    return all(callable(getattr(value, name, None)) for name in ("update", "compute", "reset"))


def is_number(value: Any) -> bool:
    """True if it is a number, and neither NaN, nor infinite, nor True or False."""
    return _is_real(value) and math.isfinite(value)


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole(value: Any, least: int) -> bool:
    """True if it is a whole number from ``least`` on; True and False are none."""
    return isinstance(value, int) and _is_real(value) and value >= least


def one_of(*choices: str) -> Takes:
    """Return the rule for one of several texts."""
    wanted = " or ".join(map(repr, choices))
    return Takes(lambda value: isinstance(value, str) and value in choices, wanted)


FLAG = Takes(lambda value: isinstance(value, bool), "True or False")
POSITIVE = Takes(lambda value: whole(value, 1), "positive and whole")
NUMBER = Takes(is_number, "a number")
POSITIVE_NUMBER = Takes(
    lambda value: _is_real(value) and value > 0,
    "a positive number",  # or infinity: no limit
)
SEED = Takes(lambda value: whole(value, 0) and value < 2**32, "from 0 to 2**32 - 1")
TEXT = Takes(lambda value: isinstance(value, str) and value != "", "a text that is not empty")
PATH = Takes(
    lambda value: isinstance(value, str | os.PathLike) and str(value) != "",
    "a path, of text or a Path",
)
