"""Values wait to be added up: what happens to them meanwhile, and where they were made."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import distmetrics as dm
from distmetrics.log.kinds import KINDS
from distmetrics.log.window import Window
from distmetrics.testing import run

SUM = KINDS["sum"]


@pytest.mark.parametrize("value", [1.0, torch.ones(()), None])
def test_a_weight_that_is_changed_in_place_is_an_error_of_all(value: Any) -> None:
    """Of one number, one tensor, or of many."""

    def work(comm: Any) -> tuple[str, dict[str, float]]:
        log, weight = dm.Log(comm), torch.ones(())
        log.sum("kept", 1.0)
        if value is None:
            log.mean({"x": torch.ones(()), "y": torch.ones(())}, weight=weight)
        else:
            log.mean("x", value, weight=weight)
        if comm.rank:
            weight += 1
        with pytest.raises(dm.InputError) as caught:
            log.flush()
        return str(caught.value), log.flush()

    for text, row in run(2, work):
        assert "the value or weight of 'x' was changed in place" in text
        assert "rank 1" in text
        assert (row["kept"], row["x"]) == (2.0, 1.0)  # of rank 0


@pytest.mark.parametrize("kind", ["max", "same", "quantile", "sum"])
def test_a_value_that_was_changed_in_place_does_not_count(kind: str) -> None:
    """The line that is told is that of its name, though another one had the values added up."""
    log, value = dm.Log(), torch.zeros(())
    getattr(log, kind)("x", value)
    value += 1
    for _ in range(1024 if kind == "sum" else 0):
        other(log)
    with pytest.raises(dm.InputError, match="the value or weight of 'x' was changed in place") as caught:
        log.flush()
    assert "test_a_value_that" in str(caught.value)
    assert "in other" not in str(caught.value)
    assert log.flush().keys() <= {"other"}


def other(log: dm.Log) -> None:
    log.sum("other", 1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_a_part_is_not_changed_with_the_other_parts(dtype: torch.dtype) -> None:
    log, pair = dm.Log(), torch.ones(2, dtype=dtype)
    log.sum("first", pair[0])
    log.mean("weighted", 5.0, weight=pair[0])
    pair[1] = 7
    assert log.flush() == {"first": 1.0, "weighted": 5.0}


def test_values_are_added_up_in_inference_mode_and_after_it() -> None:
    log, x = dm.Log(), torch.ones(())
    rows = []
    for steps in (1024, 1):
        with torch.inference_mode():
            for _ in range(steps):
                log.sum("alone", x * 2)
                log.mean({"a": x * 2, "b": x}, weight=x)
            log.state_dict()
        log.sum("alone", x)
        log.max("new", x)
        rows.append(log.flush())
    assert rows == [{"a": 2.0, "b": 1.0, "alone": 2.0 * steps + 1, "new": 1.0} for steps in (1024, 1)]


@pytest.mark.parametrize(("how", "is_mapping"), [(torch.vmap, False), (torch.func.grad, True)])
def test_a_value_of_a_transformed_function_is_an_error_of_all(how: Any, is_mapping: bool) -> None:
    def work(comm: Any) -> tuple[str, dict[str, float]]:
        log = dm.Log(comm)

        def loss(x: Tensor) -> Tensor:
            for _ in range(1100):  # many are added up together, but not in here
                log.sum("kept", 1.0)
            if comm.rank:
                log.sum({"x": x.sum(), "y": x.sum()} if is_mapping else "x", None if is_mapping else x.sum())
            return x.sum()

        how(loss)(torch.ones(4, 3))
        with pytest.raises(dm.InputError) as caught:
            log.flush()
        return str(caught.value), log.flush()

    for text, row in run(2, work):
        assert "the value of 'x' is no number: Cannot access storage" in text
        assert row == {"kept": 2200.0}


def test_what_is_logged_while_a_window_is_read_is_of_the_next() -> None:
    window, cpu = Window(), torch.device("cpu")
    rows = []
    for _ in range(3):
        rows.append(window.snapshot(cpu).totals.numbers.tolist())
        window.note("alone", SUM, 1.0)  # as another thread does
        window.note_all({"a": torch.ones(()), "b": torch.ones(())}, SUM)
        window.clear()
    assert rows == [[], [1.0] * 3, [1.0] * 3]
    window = Window()
    window.note("x", SUM, torch.ones(2**17))  # so many are added up at once
    snapshot = window.snapshot(cpu)
    window.note("x", SUM, torch.ones(2**17))
    window.add(snapshot.totals)
    assert snapshot.totals.numbers.unique().tolist() == [1.0]
    assert window.snapshot(cpu).totals.numbers.unique().tolist() == [3.0]


def test_a_window_keeps_no_more_of_more_values_or_states() -> None:
    """And a state tells what was wrong."""
    log, again, saved, sizes = dm.Log(), dm.Log(), dm.Log(), []
    saved.sum("y", 1.0)
    state = saved.state_dict()
    for _ in range(3):
        for _ in range(1024):  # the last one has the values added up
            log.mean("x", 1.0, weight=torch.ones(()))
        log.load_state_dict(state)
        sizes.append(len(pickle.dumps(log._window)))
    assert max(sizes) - min(sizes) < 16  # torch writes addresses, of more digits or fewer
    log.mean("x", 1.0, weight=-torch.ones(()))
    again.load_state_dict(log.state_dict())
    for each in (log, again):
        with pytest.raises(dm.InputError, match="'x': a weight is negative or not finite, first logged at"):
            each.flush()
        assert each.flush() == {"x": 1.0, "y": 3.0}
