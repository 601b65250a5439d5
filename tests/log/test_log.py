"""A log's row is what one process would have logged of all ranks' values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.log import merge
from distmetrics.log.kinds import KINDS as BY_NAME
from distmetrics.log.kinds import LARGEST_ARRAY, Kind
from distmetrics.log.names import Names, Totals
from distmetrics.log.window import WindowSnapshot
from distmetrics.message import decode, encode
from distmetrics.testing import run


def many_names(comm: Any) -> list[dict[str, float]]:
    """Log more than fits into a frame; on one rank with a name of its own."""
    log = dm.Log(comm)
    rows = []
    for window in range(3):
        for index in range(3000):
            log.mean(f"n{index}", float(index), weight=1 + comm.rank)
            log.max(f"m{index}", float(index * comm.rank))
        if comm.rank == window:
            log.min("own", -1.0)
        rows.append(log.flush())
    return rows


def test_more_names_than_a_frame_holds() -> None:
    for rows in run(2, many_names):
        for window, row in enumerate(rows):
            assert row.pop("own", None) == (-1.0 if window < 2 else None)
            assert row == {f"n{i}": float(i) for i in range(3000)} | {f"m{i}": float(i) for i in range(3000)}


def flushed(comm: Any, action: Any) -> tuple[str, dict[str, float]]:
    """Return the error of a flush after ``action``, and what the next flush gives."""
    log = dm.Log(comm)
    log.sum("kept", 1.0)
    action(log, comm.rank)
    with pytest.raises((dm.InputError, dm.MismatchError)) as caught:
        log.flush()
    text = str(caught.value)
    try:
        return text, log.flush()
    except dm.MismatchError:  # what was logged is kept, and is still wrong
        return text, {}


FAULTS: dict[str, tuple[Any, list[str]]] = {
    "NaN on one rank": (
        lambda log, rank: log.same("lr", math.nan if rank else 1.0),
        ["'lr' was logged as the same", "rank 1  nan"],
    ),
    "an array on a rank": (
        lambda log, rank: log.sum("x", torch.ones(2) if rank else 1.0),
        ["'x' in two ways", "rank 0  as a sum, first", "rank 1  as a sum of shape [2]", "test_log.py:"],
    ),
    "arrays that are not the same": (
        lambda log, rank: log.same("experts", [1, 2 + rank]),
        ["'experts' was logged as the same", "rank 0  [1.0, 2.0], first at ", "rank 1  [1.0, 3.0], first at "],
    ),
    "a weight too few": (
        lambda log, rank: log.mean("x", [1, 2, 3], weight=[1, 1] if rank else 1),
        ["the value of 'x' is of shape [3], and its weight of shape [2]", "rank 1", "test_log.py:"],
    ),
    "weights of many numbers": (
        lambda log, rank: log.std({"x": torch.ones(())}, weight=torch.ones(2)) if rank else None,
        ["the value of 'x' is of shape [], and its weight of shape [2]", "rank 1"],
    ),
    "a negative weight of an element": (
        lambda log, rank: log.mean("x", torch.ones(3), weight=torch.tensor([1, 1, -rank])),
        ["'x': a weight is negative or not finite", "rank 1"],
    ),
    "a negative weight of a sample": (
        lambda log, rank: log.std("x", [1, 2, 3], weight=[1, 1, -rank]),
        ["'x': a weight is negative or not finite", "rank 1"],
    ),
    "no elements": (
        lambda log, rank: log.sum("x", torch.ones(2 * (1 - rank))),
        ["the value of 'x' is an array of 0 elements", "rank 1"],
    ),
    "a list of tensors": (
        lambda log, rank: log.sum("x", [torch.ones(()), 2]) if rank else None,
        ["the value of 'x' is no number", "torch.stack", "rank 1"],
    ),
    "an array changed in place": (
        lambda log, rank: (log.sum("x", x := torch.ones(2)), x.add_(rank) if rank else None),
        ["the value or weight of 'x' was changed in place", "value.clone()", "rank 1"],
    ),
    "one of many": (
        lambda log, rank: log.sum({"a": torch.ones(()), "b": torch.ones(1, 1 + rank)}),
        ["the value of 'b' is a tensor of shape [1, 2]", "rank 1", "test_log.py:"],
    ),
    "one of many by another kind": (
        lambda log, rank: (log.sum("b", 1.0), log.max({"a": torch.ones(()), "b": torch.ones(())}) if rank else None),
        ["'b' was logged as a sum", "now as a max", "rank 1"],
    ),
    "a weight of many": (
        lambda log, rank: log.mean({"a": torch.ones(()), "b": torch.ones(())}, weight=torch.tensor(-rank)),
        ["'a': a weight is negative or not finite", "rank 1"],
    ),
    "names and a value": (
        lambda log, rank: log.sum({"a": 1} if rank else "x", 1.0),
        ["a name must be a string, got {'a': 1}"],
    ),
    "a name of another's": (
        lambda log, rank: (log.quantile("step", 1.0), rank and log.sum("step_max", 7.0)),
        ["two values of 'step_max'"],
    ),
    "an element's name": (
        lambda log, rank: (log.sum("experts", [1, 2]), log.sum("experts/1", 3)),
        ["two values of 'experts/1'"],
    ),
    "no value": (lambda log, rank: log.sum("a", None if rank else 1.0), ["the value of 'a' is no number"]),
    "no text": (lambda log, rank: log.sum("x" if rank else "\ud800", 1.0), ["a name must be a string that UTF-8"]),
    "no name": (lambda log, rank: log.sum(rank or "x", 1.0), ["a name must be a string, got 1"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_rank_is_an_error_of_all(fault: str) -> None:
    action, parts = FAULTS[fault]
    for text, row in run(2, flushed, action):
        for part in parts:
            assert part in text
        assert row == {} or row["kept"] == 2.0


@pytest.mark.parametrize("kind", [["sum", 1 << 40], ["std", 3], ["median", 0], "sum[8]"])
def test_what_a_peer_calls_a_kind_is_bounded(kind: Any) -> None:
    with pytest.raises(dm.MismatchError, match="rank 1 sent data that is no frame of distmetrics: names"):
        decode(Names, encode([{"x": kind}, False]), "names", 1)


def flushed_by(comm: Any, liar: int, kind: Kind, count: int) -> tuple[str, dict[str, Any]]:
    """Flush where one rank tells of more numbers than there is memory for, and sends none."""
    names = Names.of({f"n{index}": kind for index in range(count if comm.rank == liar else 0)})
    totals = Totals(names, torch.zeros(0, dtype=torch.float64))
    snapshot = WindowSnapshot(totals, {}, {}, None, None)
    with pytest.raises(dm.InputError) as caught:
        merge.flushed(snapshot, merge.Known(), comm=comm)
    log = dm.Log(comm)
    log.sum("x", 1.0)
    return str(caught.value), log.flush()


@settings(max_examples=4)
@given(st.integers(2, 3), st.integers(0, 1), st.sampled_from(["mean", "sum", "max", "min", "same"]), st.floats(1, 1.1))
def test_more_numbers_than_there_is_memory_for_are_refused(world_size: int, liar: int, op: str, times: float) -> None:
    kind = BY_NAME[op].but(size=LARGEST_ARRAY)
    count = int(times * 2**47 / (8 * kind.count))  # an address has 47 bits
    for text, row in run(world_size, flushed_by, liar, kind, count):
        assert "has no memory" in text
        assert row == {"x": 1.0 * world_size}


def test_a_state_is_left_as_it_is_and_must_fit() -> None:
    log, other = dm.Log(), dm.Log()
    log.same("epoch", 1)
    state = log.state_dict()
    other.same("epoch", 2)
    other.load_state_dict(state)
    assert other.flush() == {"epoch": 2.0}
    fresh = dm.Log()
    fresh.load_state_dict(state)
    assert fresh.flush() == {"epoch": 1.0}
    saved, unlike = dm.Log(), dm.Log()
    saved.max("a", 1.0)
    saved.same("epoch", 1)
    unlike.sum("epoch", 1)
    with pytest.raises(dm.InputError, match=r"'epoch' was logged as a sum, first at .*; now as a same"):
        unlike.load_state_dict(saved.state_dict())
    assert unlike.flush() == {"epoch": 1.0}  # nothing is left behind


def test_of_states_that_differ_in_what_is_the_same_the_first_one_counts() -> None:
    log = dm.Log()
    for epoch in (1, 2):
        saved = dm.Log()
        saved.same("epoch", epoch)
        saved.sum("steps", epoch)
        log.load_state_dict(saved.state_dict())
    assert log.flush() == {"epoch": 1.0, "steps": 3.0}


def test_a_state_of_another_version_is_refused() -> None:
    log = dm.Log()
    log.sum("kept", 1)
    state = {"names": "[]", "numbers": torch.zeros(0), "problem": None, "flushes": 1}
    for old in (state, {**state, "kinds": {"x": "sum"}}, None):
        with pytest.raises(dm.InputError, match="another version of distmetrics has saved it"):
            log.load_state_dict(old)
    assert log.flush() == {"kept": 1.0}


def in_groups(comm: Any) -> list[dict[str, float]]:
    """Flush one log among some ranks, then among all: what names are known differs by then."""
    log, rows = dm.Log(), []
    if comm.rank:
        pair = comm.subgroup([1, 2])
        for _ in range(2):
            log.sum(f"of {comm.rank}", 1.0)
            with dm.use(pair):
                rows.append(log.flush())
    for _ in range(2):
        log.sum("all", 1.0)
        if comm.rank:
            log.sum(f"of {comm.rank}", 1.0)
        rows.append(log.flush())
    return rows


def test_one_log_among_several_groups() -> None:
    whole = {"all": 3.0, "of 1": 1.0, "of 2": 1.0}
    pair = {"of 1": 1.0, "of 2": 1.0}
    assert run(3, in_groups) == [[whole] * 2, [pair, pair, whole, whole], [pair, pair, whole, whole]]


def unlike_in_a_group(comm: Any) -> str:
    if comm.rank == 0:
        return ""
    log = dm.Log(comm.subgroup([1, 2]))
    log.same("epoch", comm.rank)
    with pytest.raises(dm.MismatchError) as caught:
        log.flush()
    assert caught.value.rank == comm.rank
    return str(caught.value)


def test_errors_of_a_group_name_the_ranks_of_the_job() -> None:
    _, first, second = run(3, unlike_in_a_group)
    assert first == second
    assert "rank 1  1.0, first at" in first
    assert "rank 2  2.0, first at" in first


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


def test_a_log_that_begins_anew_on_one_rank() -> None:
    assert run(2, resumed_alone) == [[{"all": 2.0, "of 0": 2.0, "of 1": 2.0}] * 3] * 2
