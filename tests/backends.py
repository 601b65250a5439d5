"""Shared by the tests that run in worlds: threads and real processes, and what every rank ended with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from distmetrics.errors import DistmetricsError
from distmetrics.testing import Outcome

BACKENDS = [pytest.param("threads", id="threads"), pytest.param("gloo", id="gloo", marks=pytest.mark.gloo)]
both_backends = pytest.mark.parametrize("backend", BACKENDS)


def verdicts(ended: Sequence[Outcome]) -> list[tuple[str, int | None, tuple[int, ...]] | None]:
    """Return each rank's error as (type, the rank it was raised on, the ranks it names), None for a rank without."""
    found: list[tuple[str, int | None, tuple[int, ...]] | None] = []
    for outcome in ended:
        error = outcome.error
        if error is None:
            found.append(None)
        else:
            ours = isinstance(error, DistmetricsError)
            found.append((type(error).__name__, error.rank if ours else None, error.peers if ours else ()))
    return found


def same_error(ended: Sequence[Outcome], kind: type[DistmetricsError]) -> DistmetricsError:
    """Assert that every rank raised the same error of ``kind``, each with its own rank; return rank 0's."""
    for outcome in ended:
        assert type(outcome.error) is kind, f"rank {outcome.rank}: {outcome.error!r}"
        assert outcome.error.rank == outcome.rank
        assert str(outcome.error) == str(ended[0].error)
        assert outcome.error.peers == ended[0].error.peers  # type: ignore[union-attr]
    error = ended[0].error
    assert isinstance(error, kind)
    return error
