"""Bugs of published trainers that a log of ours must not have."""

from __future__ import annotations

from typing import Any

import pytest

import distmetrics as dm
from distmetrics.testing import run
from tests.backends import both_backends


def rewards(comm: Any) -> dict[str, float]:
    log = dm.Log(comm)
    log.mean("global_seqlen/minmax_diff", 1.0 + comm.rank, weight=1)
    log.sum("admin/tokens", 10.0)
    log.max("minutes", float(comm.rank))
    log.min("max_length", float(comm.rank))
    return log.flush()


@both_backends
def test_what_a_name_contains_says_nothing_of_its_kind(backend: str) -> None:
    # verl-project/verl#7361: "max" or "min" anywhere in a name chose how it was reduced.
    row = {"global_seqlen/minmax_diff": 1.5, "admin/tokens": 20.0, "minutes": 1.0, "max_length": 0.0}
    assert run(2, rewards, backend=backend) == [row] * 2


def clipped(comm: Any) -> dict[str, float]:
    """Log the share of clipped tokens: 3 of 12 on one rank, 3 of 4 on the other."""
    log = dm.Log(comm)
    for tokens, count in [[(6, 1), (6, 2)], [(2, 2), (2, 1)]][comm.rank]:
        log.mean("clip_ratio/region_mean", count / tokens, weight=tokens)
    return log.flush()


@both_backends
def test_a_mean_is_that_of_all_tokens(backend: str) -> None:
    # huggingface/trl#6380: the mean of the ranks' means was logged, 0.5 for 6 of 16.
    row = {"clip_ratio/region_mean": pytest.approx(0.375, rel=1e-15)}
    assert run(2, clipped, backend=backend) == [row] * 2


def padded(comm: Any) -> dict[str, float]:
    """Log a loss where one of four ranks has no tokens."""
    log = dm.Log(comm)
    tokens = [4, 4, 4, 0][comm.rank]
    log.mean("loss", 0.5 if tokens else 0.0, weight=tokens)
    return log.flush()


@both_backends
def test_a_rank_without_tokens_does_not_count(backend: str) -> None:
    # A sum over the ranks, divided by their number, logs 0.375 for a loss of 0.5.
    assert run(4, padded, backend=backend) == [{"loss": 0.5}] * 4


def other_names(comm: Any, odd: int, window: int) -> list[dict[str, float]]:
    """Log a name of its own on one rank, in one window."""
    log = dm.Log(comm)
    rows = []
    for place in range(3):
        log.mean("loss", 1.0, weight=1)
        if comm.rank == odd and place == window:
            log.sum("moe/dropped", 3.0)
        rows.append(log.flush())
    return rows


@both_backends
@pytest.mark.parametrize("window", [0, 1])
@pytest.mark.parametrize("odd", [0, 1])
def test_names_of_one_rank_do_not_hang(odd: int, window: int, backend: str) -> None:
    # Lightning-AI/pytorch-lightning#19106: names that one rank alone logs are reduced by it alone,
    # and it waits for ever.
    rows = [{"loss": 1.0} for _ in range(3)]
    rows[window]["moe/dropped"] = 3.0
    assert run(2, other_names, odd, window, backend=backend) == [rows] * 2


def some_stages(comm: Any) -> dict[str, float]:
    log = dm.Log(comm)
    if comm.rank == comm.world_size - 1:
        log.mean("loss", 2.0, weight=5)
    return log.flush()


@both_backends
def test_stages_of_a_pipeline_may_log_nothing(backend: str) -> None:
    assert run(3, some_stages, backend=backend) == [{"loss": 2.0}] * 3


def resumed_alone(comm: Any) -> list[dict[str, float]]:
    """Begin a log anew on one rank: the other knows names that it does not."""
    log, rows = dm.Log(comm), []
    for window in range(3):
        if window == 1 and comm.rank == 0:
            state = log.state_dict()
            log = dm.Log(comm)
            log.load_state_dict(state)
        log.sum("all", 1.0)
        log.sum(f"of {comm.rank}", 2.0)
        rows.append(log.flush())
    return rows


@both_backends
def test_a_log_that_begins_anew_on_one_rank(backend: str) -> None:
    row = {"all": 2.0, "of 0": 2.0, "of 1": 2.0}
    assert run(2, resumed_alone, backend=backend) == [[row] * 3] * 2


def told_twice(comm: Any) -> str:
    log = dm.Log(comm)
    log.quantile("step", 1.0)
    if comm.rank:
        log.sum("step_max", 7.0)
    with pytest.raises(dm.MismatchError) as caught:
        log.flush()
    return str(caught.value)


def test_a_row_has_no_name_twice() -> None:
    first, second = run(2, told_twice)
    assert first == second
    assert "two values of 'step_max'" in first
