"""In a large world ranks that log other names than each other send the same ones from the second flush on."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

import distmetrics as dm
from benchmarks.log_scripts import drawn, verdict
from distmetrics.collectives import exchange
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator


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
