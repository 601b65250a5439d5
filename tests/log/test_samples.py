"""Standard deviations and arrays are those of one process that has all samples."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import distmetrics as dm
from distmetrics.log import CSVLogger, LiveTable, TensorBoardLogger
from distmetrics.testing import run

# By rank and step, samples and how often each counts.
Batch = list[tuple[float, int]]
batches = st.lists(st.tuples(st.floats(-1, 1), st.integers(0, 2)), max_size=4)
steps = st.lists(batches, min_size=1, max_size=4)


def logged(comm: Any, script: list[list[Batch]], mean: float, reloads: bool) -> float:
    log = dm.Log(comm)
    for step, batch in enumerate(script[comm.rank]):
        values = torch.tensor([mean + value for value, _ in batch], dtype=torch.float64)
        log.std("x", values, weight=torch.tensor([weight for _, weight in batch]))
        if reloads and step % 2:
            state, log = log.state_dict(), dm.Log(comm)
            log.load_state_dict(state)
    return log.flush()["x"]


@settings(max_examples=60)
@given(
    st.integers(1, 4).flatmap(lambda size: st.lists(steps, min_size=size, max_size=size)),
    st.sampled_from([0.0, 1.0, -1e3, 1e8, 1e12]),
    st.booleans(),
)
def test_a_large_mean_costs_a_small_spread_no_digits(script: list[list[Batch]], mean: float, reloads: bool) -> None:
    samples = [mean + value for rank in script for batch in rank for value, weight in batch for _ in range(weight)]
    expected = float(np.std(samples, ddof=1)) if len(samples) > 1 else math.nan
    for value in run(len(script), logged, script, mean, reloads):
        # The mean itself is known to one part in 2^52 for each sample.
        assert value == pytest.approx(expected, rel=1e-9, abs=abs(mean) * 1e-15 + 1e-15, nan_ok=True)


def written(comm: Any, folder: Path) -> tuple[list[Any], str]:
    kept: list[Any] = []
    table = LiveTable(shown := io.StringIO())

    def spoils(row: dict[str, Any], step: int) -> None:
        row["experts"].clear()

    files = [logger(folder, version=logger.__name__) for logger in (CSVLogger, TensorBoardLogger)]
    log = dm.Log(comm, writers=[spoils, *files, table, lambda row, step: kept.append(row)])
    for step in range(2):
        log.sum("experts", [1.0, 2.0 * step])
        log.sum("tokens", 4)
        log.flush(wait=bool(step))
    return kept, shown.getvalue()


def test_writers_get_arrays_and_loggers_their_elements(tmp_path: Path) -> None:
    (first, shown), second = run(2, written, tmp_path)
    rows = [{"experts": [2.0, 4.0 * step], "tokens": 8.0} for step in range(2)]
    assert (first, second) == (rows, ([], ""))
    (file,) = tmp_path.glob("**/metrics.csv")
    assert file.read_text().splitlines() == ["step,experts/0,experts/1,tokens", "1,2.0,0.0,8.0", "2,2.0,4.0,8.0"]
    events = EventAccumulator(str(tmp_path / "distmetrics_logs" / "TensorBoardLogger"))
    events.Reload()
    assert [event.value for event in events.Scalars("experts/1")] == [0.0, 4.0]
    assert "experts 2 to 4  tokens 8" in shown
