"""In a large world ranks that log other names than each other send the same ones from the second flush on."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

import distmetrics as dm
from benchmarks.log_scripts import drawn, verdict
from distmetrics.collectives import exchange
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import same_error


@pytest.fixture(autouse=True)
def every_world_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "LARGE_WORLD", 1)


def stages(comm: Any) -> tuple[list[dict[str, float]], list[list[str]]]:
    """Log other names on each rank, now these and now those, and note which collectives that takes."""
    recorder = RecordingCommunicator(comm)
    log, rows, ops = dm.Log(recorder), [], []
    for window in range(5):
        log.mean("loss", 1.0 + comm.rank, weight=1)
        log.max(f"stage {comm.rank}/norm", float(window))
        if window == 3:
            log.same("epoch", 1)
        if comm.rank == 0 and window % 2:
            log.mean("rare", math.nan, weight=0)
        before = len(recorder.calls)
        rows.append(log.flush())
        ops.append([each.op for each in itertools.islice(recorder.calls, before, None)])
    return rows, ops


def test_other_names_take_no_frames_once_all_know_them() -> None:
    first, *others = run(3, stages)
    assert all(str(other) == str(first) for other in others)  # NaN equals nothing
    rows, ops = first
    norms = {f"stage {rank}/norm" for rank in range(3)}
    for window, row in enumerate(rows):
        more = ({"rare"} if window % 2 else set()) | ({"epoch"} if window == 3 else set())
        assert row.keys() == {"loss", *norms, *more}
        assert row["loss"] == 2.0
        assert {row[norm] for norm in norms} == {float(window)}
    assert math.isnan(rows[1]["rare"])
    assert "all_gather" in " ".join(ops[0])
    for window in (2, 4):  # nothing new: the hash, what is added up, what is compared, and its NaNs
        assert ops[window] == ["all_reduce max", "all_reduce sum", "all_reduce max", "all_reduce max"]


def test_random_scripts() -> None:
    for script in drawn(60, 5, range(2, 6)):
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
