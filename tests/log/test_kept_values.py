"""Values wait to be added up: what happens to them meanwhile, and where they were made."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import distmetrics as dm
from distmetrics.log.kinds import KINDS
from distmetrics.log.window import Window
from distmetrics.testing import run

SUM = KINDS["sum"]

WEIGHED: dict[str, Callable[[dm.Log, Tensor], None]] = {
    "a number": lambda log, weight: log.mean("x", 1.0, weight=weight),
    "a tensor": lambda log, weight: log.mean("x", torch.ones(()), weight=weight),
    "of many": lambda log, weight: log.mean({"x": torch.ones(()), "y": torch.ones(())}, weight=weight),
}


def reweighed(comm: Any, call: Callable[[dm.Log, Tensor], None]) -> tuple[str, dict[str, float]]:
    log, weight = dm.Log(comm), torch.ones(())
    log.sum("kept", 1.0)
    call(log, weight)
    if comm.rank:
        weight += 1
    with pytest.raises(dm.InputError) as caught:
        log.flush()
    return str(caught.value), log.flush()


@pytest.mark.parametrize("how", WEIGHED)
def test_a_weight_that_is_changed_in_place_is_an_error_of_all(how: str) -> None:
    for text, row in run(2, reweighed, WEIGHED[how]):
        assert "the value or weight of 'x' was changed in place" in text
        assert "rank 1" in text
        assert row["kept"] == 2.0
        assert row["x"] == 1.0  # of rank 0


@pytest.mark.parametrize("kind", ["max", "same", "quantile"])
def test_a_value_that_was_changed_in_place_does_not_count(kind: str) -> None:
    log, value = dm.Log(), torch.zeros(())
    getattr(log, kind)("x", value)
    value += 1
    with pytest.raises(dm.InputError, match="the value or weight of 'x' was changed in place"):
        log.flush()
    assert log.flush() == {}


def test_the_line_that_a_change_is_told_of_is_of_its_name() -> None:
    log, value = dm.Log(), torch.zeros(())
    log.sum("x", value)
    value += 1
    for _ in range(1024):
        other(log)  # the last one has the values added up
    with pytest.raises(dm.InputError) as caught:
        log.flush()
    assert "test_the_line" in str(caught.value)
    assert "in other" not in str(caught.value)


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


def transformed(comm: Any, how: Any, is_mapping: bool) -> tuple[str, dict[str, float]]:
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


@pytest.mark.parametrize(("how", "is_mapping"), [(torch.vmap, False), (torch.func.grad, True)])
def test_a_value_of_a_transformed_function_is_an_error_of_all(how: Any, is_mapping: bool) -> None:
    for text, row in run(2, transformed, how, is_mapping):
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


def test_a_snapshot_is_not_changed_by_what_comes_later() -> None:
    window = Window()
    window.note("x", SUM, torch.ones(2**17))  # so many are added up at once
    snapshot = window.snapshot(torch.device("cpu"))
    window.note("x", SUM, torch.ones(2**17))
    window.add(snapshot.totals)
    assert snapshot.totals.numbers.unique().tolist() == [1.0]
    assert window.snapshot(torch.device("cpu")).totals.numbers.unique().tolist() == [3.0]


def test_a_window_keeps_no_more_of_more_values_or_states() -> None:
    log, saved, sizes = dm.Log(), dm.Log(), []
    saved.sum("y", 1.0)
    state = saved.state_dict()
    for _ in range(3):
        for _ in range(1024):  # the last one has the values added up
            log.mean("x", 1.0, weight=torch.ones(()))
        log.load_state_dict(state)
        sizes.append(len(pickle.dumps(log._window)))
    assert max(sizes) - min(sizes) < 16  # torch writes addresses, of more digits or fewer
    log.mean("x", 1.0, weight=-torch.ones(()))
    with pytest.raises(dm.InputError, match="'x': a weight is negative or not finite"):
        log.flush()
    assert log.flush() == {"x": 1.0, "y": 3.0}
