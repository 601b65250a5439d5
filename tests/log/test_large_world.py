"""In a large world ranks that log other names than each other send the same ones from the second flush on."""

from __future__ import annotations

from typing import Any

import pytest

import distmetrics as dm
from benchmarks.log_scripts import drawn, verdict
from distmetrics.collectives import exchange
from distmetrics.testing import outcomes
from tests.backends import same_error


@pytest.fixture(autouse=True)
def every_world_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "LARGE_WORLD", 1)


def test_random_scripts() -> None:
    for script in drawn(30, 5, range(2, 6)):
        assert verdict(script)[:2] == ("right", []), script


def test_the_lines_of_a_name_that_not_all_ranks_have_logged() -> None:
    """Not in this window, or never, although all ranks send numbers for it."""

    def unlike(comm: Any) -> None:
        log = dm.Log(comm)
        for _ in range(2):
            log.max(f"stage {comm.rank}", 1.0)
            if comm.rank != 2:
                log.same("epoch", 1.0)
            log.flush()
        if comm.rank == 0:
            log.same("epoch", 2.0)
        if comm.rank == 3:
            log.same("epoch", 3.0)
        log.flush()

    error = same_error(outcomes(4, unlike), dm.MismatchError)
    lines = [error.per_rank[rank].split(",")[0] for rank in range(4)]
    assert lines == ["2.0", "not logged", "not logged", "3.0"]
