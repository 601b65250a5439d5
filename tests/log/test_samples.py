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
from distmetrics.collectives import exchange
from distmetrics.log import CSVLogger, LiveTable, TensorBoardLogger
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import both_backends

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


@settings(max_examples=100)
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


REWARDS = [np.random.default_rng(rank).normal(1e6, 1.0, 7 + rank) for rank in range(3)]


def rewards(comm: Any, has_quantiles: bool) -> tuple[dict[str, Any], list[str]]:
    """Log in two steps; one rank has samples of weight 0 that are not numbers."""
    recorder = RecordingCommunicator(comm)
    log, mine = dm.Log(recorder), REWARDS[comm.rank]
    for part in (mine[:3], mine[3:]):
        log.std("list", part.tolist())
        log.std("array", part)
        log.std("masked", torch.tensor([math.nan, *part]), weight=torch.tensor([False] + [True] * len(part)))
        for value in part:
            log.std("one by one", float(value))
            log.std({"of many": torch.tensor(value)})
        if has_quantiles:  # more than fits into one message
            log.quantile("size", torch.as_tensor(part))
            log.quantile("none", [])
        log.std("alone", [5.0] if comm.rank == 0 and len(part) == 3 else [])
    return log.flush(), [call.op for call in recorder.calls]


@both_backends
@pytest.mark.parametrize("has_quantiles", [False, True])
@pytest.mark.parametrize("world_size", [2, 3])
def test_samples_of_all_ranks(world_size: int, has_quantiles: bool, backend: str) -> None:
    ops = check_rewards(run(world_size, rewards, has_quantiles, backend=backend))
    assert has_quantiles or ops == ["all_gather"]


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_large_world_reduces_squares_once_their_mean_is_known(
    world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "LARGE_WORLD", 1)
    ops = check_rewards(run(world_size, rewards, False))
    assert ops[-3:] == ["all_reduce max", "all_reduce sum", "all_reduce sum"]  # a hash, then squares last


def check_rewards(per_rank: list[tuple[dict[str, Any], list[str]]]) -> list[str]:
    """Compare rows with the samples of all ranks; return the collectives of one rank."""
    world_size, (first, *others) = len(per_rank), per_rank
    assert all(repr(other) == repr(first) for other in others)
    row, ops = first
    whole = np.concatenate(REWARDS[:world_size])
    for name in ("list", "array", "masked", "one by one", "of many"):
        assert row[name] == pytest.approx(np.std(whole, ddof=1), rel=1e-9)
    assert math.isnan(row["alone"])
    if "size_max" in row:
        assert row["size_max"] == whole.max()
        assert row["size_p50"] == pytest.approx(np.median(whole), rel=0.01)
        assert math.isnan(row["none_max"])
    return ops


def arrays(comm: Any) -> tuple[dict[str, Any], list[str]]:
    recorder = RecordingCommunicator(comm)
    log, rank = dm.Log(recorder), comm.rank
    for step in range(2):
        log.sum("experts", torch.tensor([step, rank, 1]))
        log.mean("loss", [1.0, rank, math.nan], weight=[1 + step, 1 + rank, 0])
        log.mean("alike", np.array([1.0, rank]), weight=1 + rank)
        log.max("most", torch.tensor([rank, -rank]).float())
        log.min({"least": (rank, -rank)})
        log.same("lr", torch.tensor([0.5, step]))
        log.sum("one", torch.tensor([rank]))
    return log.flush(), [call.op for call in recorder.calls]


@both_backends
@pytest.mark.parametrize("world_size", [2, 3])
def test_elements_of_arrays_are_combined_each_by_itself(world_size: int, backend: str) -> None:
    size = range(world_size)
    total = sum(1 + rank for rank in size)
    mean = sum(rank * (1 + rank) for rank in size) / total
    for row, ops in run(world_size, arrays, backend=backend):
        assert len(ops) == 1
        assert row.pop("loss")[:2] == pytest.approx([1.0, mean])
        assert row == {
            "experts": [1.0 * world_size, 2.0 * sum(size), 2.0 * world_size],
            "alike": pytest.approx([1.0, mean]),
            "most": [world_size - 1.0, 0.0],
            "least": [0.0, 1.0 - world_size],
            "lr": [0.5, 1.0],
            "one": 2.0 * sum(size),
        }


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


def told_twice(comm: Any) -> str:
    log = dm.Log(comm)
    log.sum("experts", [1, 2])
    log.sum("experts/1", 3)
    with pytest.raises(dm.MismatchError) as caught:
        log.flush()
    return str(caught.value)


def test_an_element_has_no_other_values_name() -> None:
    first, second = run(2, told_twice)
    assert first == second
    assert "two values of 'experts/1'" in first
