"""How one rank ended, and which error caused those of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distmetrics.errors import DivergedError, PeerLostError, by_line, in_short, who


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank returned, or the exception that ended it."""

    rank: int
    value: Any = None
    error: BaseException | None = None


def settle(outcomes: Sequence[Outcome]) -> list[Any]:
    """Return every rank's value, or raise the error that caused the others.

    Outcomes are in rank order. A rank that was only let down (``DivergedError``,
    ``PeerLostError``) never hides the rank that raised first; what the other ranks raised is added
    to the error as notes.
    """
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if not failed:
        return [outcome.value for outcome in outcomes]
    root = min(failed, key=lambda outcome: blame(outcome.error))
    error = root.error
    assert error is not None
    error.add_note(f"raised on rank {root.rank}")
    others = {each.rank: in_short(each.error) for each in failed if each is not root}
    for text, ranks in by_line(others).items():
        error.add_note(f"{who(ranks)} raised {text}")
    raise error


def blame(error: BaseException | None) -> int:
    """Return 0 for an error that may be the cause, 1 or 2 for one of a rank that was let down."""
    if isinstance(error, PeerLostError):
        return 2
    return 1 if isinstance(error, DivergedError) else 0
