"""A few of the random scripts of ``benchmarks.log_scripts``, and deviations, are those of one process."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import distmetrics as dm
from benchmarks.log_scripts import Script, drawn, on_gloo, scripts, verdict
from distmetrics.collectives import exchange
from distmetrics.log import window
from distmetrics.testing import outcomes, run
from tests.backends import same_error


@settings(max_examples=60)
@given(scripts())
def test_a_script_gives_exact_rows_and_named_errors(script: Script) -> None:
    assert verdict(script)[:2] == ("right", [])


def test_values_are_added_up_within_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_MOST", 2 * window._OF_A_CALL)
    for script in drawn(40, 11, range(1, 5)):
        assert verdict(script)[:2] == ("right", []), script


@pytest.mark.gloo
def test_on_processes() -> None:
    for how, what, seen in on_gloo(drawn(5, 7, [2]), 2):
        assert (how, what) == ("right", [])
        assert seen["rows"] + seen["faults"] > 0


def test_a_large_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second flush on ranks send the same names; an error has the lines of those that not all have logged."""
    monkeypatch.setattr(exchange, "LARGE_WORLD", 1)
    for script in drawn(30, 5, range(2, 6)):
        assert verdict(script)[:2] == ("right", []), script

    def unlike(comm: Any) -> None:
        log = dm.Log(comm)
        for _ in range(2):
            log.max(f"stage {comm.rank}", 1.0)
            if comm.rank != 2:
                log.same("epoch", 1.0)
            log.flush()
        if comm.rank in (0, 3):
            log.same("epoch", 2.0 + comm.rank)
        log.flush()

    error = same_error(outcomes(4, unlike), dm.MismatchError)
    lines = [error.per_rank[rank].split(",")[0] for rank in range(4)]
    assert lines == ["2.0", "not logged", "not logged", "5.0"]


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
