"""Rows reach each writer once, on one rank, whatever another one raises and in whichever thread the exchange runs."""

from __future__ import annotations

import csv
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.errors import ConfigurationError
from distmetrics.log import CSVLogger, Logger
from distmetrics.testing import outcomes, run

Written = list[tuple[int, dict[str, float]]]


class Kept(Logger):
    """In memory; fails at some steps, after it has spoilt the row that it was given."""

    def __init__(self, fails_at: tuple[int, ...] = ()) -> None:
        self.fails_at = fails_at
        self.rows: Written = []
        self.saved: list[int] = []
        self.threads: set[int] = set()

    def __repr__(self) -> str:
        return "Kept"

    def log_metrics(self, metrics: Any, step: int) -> None:
        self.threads.add(threading.get_ident())
        self.rows.append((step, dict(metrics)))
        metrics.clear()
        if step in self.fails_at:
            raise OSError(f"no space at {step}")

    def save(self) -> None:
        self.saved.append(self.rows[-1][0])


def rows_of(world_size: int, steps: int) -> Written:
    """Return what one process would write."""
    return [(step, {"x": float(sum(step * 10 + rank for rank in range(world_size)))}) for step in range(1, steps + 1)]


Action = tuple[bool, bool, bool]  # whether the flush waits; whether its result is asked for before the next, and twice


def scripted(comm: Any, script: list[Action], fails_at: tuple[int, ...]) -> tuple[Any, ...]:
    """Flush as a script says; return what writers have got, the rows seen, the errors, and whether it was my thread."""
    first, second = Kept(fails_at), Kept()
    plain: Written = []
    log = dm.Log(comm, writers=[first, second, lambda row, step: plain.append((step, row))])
    seen: list[dict[str, float]] = []
    errors: list[str] = []

    def tried(make: Any) -> None:
        try:
            seen.append(make())
        except OSError as error:
            note(error)

    def note(error: OSError) -> None:
        if isinstance(error.__cause__, OSError):  # of the flush before, where this one has failed as well
            note(error.__cause__)
        (own,) = error.__notes__
        errors.append(f"{error} ({own})")

    for step, (waits, asks, twice) in enumerate(script, 1):
        log.sum("x", step * 10 + comm.rank)
        if waits:
            tried(log.flush)
            continue
        try:
            handle = log.flush(wait=False)
        except OSError as error:  # of the flush before; this one is under way
            note(error)
            continue
        if asks:
            tried(handle.result)
        if asks and twice:
            handle.result()
    try:
        log.state_dict()  # waits for what is under way, and gives it to the writers
    except OSError as error:
        note(error)
    is_mine = first.threads | second.threads <= {threading.get_ident()}
    return first.rows, second.rows, plain, second.saved, errors, is_mine


actions = st.tuples(st.booleans(), st.booleans(), st.booleans())


@settings(max_examples=25)
@given(st.integers(1, 3), st.lists(actions, max_size=6), st.sets(st.integers(1, 6)))
def test_each_writer_gets_each_row_once(world_size: int, script: list[Action], fails_at: set[int]) -> None:
    check(world_size, script, tuple(fails_at), run(world_size, scripted, script, tuple(fails_at)))


def check(world_size: int, script: list[Action], fails_at: tuple[int, ...], per_rank: list[Any]) -> None:
    expected = rows_of(world_size, len(script))
    first, second, plain, saved, errors, is_mine = per_rank[0]
    assert first == second == plain == expected
    assert saved == [step for step, _ in expected]
    failed = sorted(set(fails_at) & set(range(1, len(script) + 1)))
    note = "Raised by writer 1 of 3, Kept, at step {}; the other writers went on."
    assert errors == [f"no space at {step} ({note.format(step)})" for step in failed]
    assert is_mine
    for other in per_rank[1:]:
        assert other == ([], [], [], [], [], True)


def refused(comm: Any) -> tuple[list[int], list[str]]:
    steps: list[int] = []
    log = dm.Log(comm, writers=[lambda row, step: steps.append(step)])
    texts = []
    for wait in (True, False):
        log.same("epoch", comm.rank)
        with pytest.raises(dm.MismatchError) as caught:
            log.flush(wait=wait) if wait else log.flush(wait=False).result()
        texts.append(str(caught.value).partition("\n")[0])
        log.same("epoch", 3)
    log.flush()
    return steps, texts


def test_a_row_that_is_refused_is_not_written() -> None:
    first, second = run(2, refused)
    assert first[0] == [3]  # two flushes before it have failed
    assert second[0] == []
    assert first[1] == second[1] == ["'epoch' was logged as the same on all ranks, and is not"] * 2


def uncaught(comm: Any) -> None:
    dm.Log(comm, writers=[Kept((1,))]).flush()
    dm.barrier(comm=comm)


def test_a_writer_that_ends_its_rank_keeps_nobody_waiting() -> None:
    first, second = outcomes(2, uncaught)
    assert isinstance(first.error, OSError)
    assert isinstance(second.error, dm.PeerLostError)


def test_several_writers_fail_at_once() -> None:
    log = dm.Log(writers=[Kept((1,)), Kept((1,)), kept := Kept()])
    with pytest.raises(OSError, match="no space at 1") as caught:
        log.flush()
    for place, error in ((2, caught.value), (1, caught.value.__context__)):
        assert error.__notes__ == [f"Raised by writer {place} of 3, Kept, at step 1; the other writers went on."]
    assert kept.rows == [(1, {})]


@pytest.mark.parametrize("writers", ["csv", Kept(), (each for each in [Kept()])])
def test_what_is_no_writer(writers: Any) -> None:
    with pytest.raises(ConfigurationError, match="Log: writers must be a list of functions of a row and a step"):
        dm.Log(writers=writers)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_hyperparameters_are_nested_as_they_were(tmp_path: Path) -> None:
    params = {"lr": 0.1, "model": {"depth": 2, "sizes": [8, 8]}, "dtype": torch.float32}
    CSVLogger(tmp_path, "", "run").log_hyperparams(params)
    written = json.loads((tmp_path / "run" / "hparams.json").read_text())
    assert written == params | {"dtype": "torch.float32"}


def test_names_with_ends_of_lines_that_csv_has_not(tmp_path: Path) -> None:
    for step in (1, 2):
        CSVLogger(tmp_path, "", "run").log_metrics({"a\x0cb\u2028c": 0.5}, step)
    assert [row["a\x0cb\u2028c"] for row in read(tmp_path / "run" / "metrics.csv")] == ["0.5", "0.5"]


def test_a_row_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    log = dm.Log(writers=[CSVLogger(tmp_path, "", "run")])
    path = tmp_path / "run" / "metrics.csv"
    for step in (1, 2):
        log.mean("loss", 0.125, weight=1)
        log.flush(step)
    path.write_bytes(path.read_bytes()[:-3])  # 0.12 is a number as well
    dm.Log(writers=[CSVLogger(tmp_path, "", "run")]).flush(2)
    assert [row["step"] for row in read(path)] == ["1", "2"]
    assert read(path)[1]["loss"] == ""
    path.write_bytes(b"step,lo")  # not even the names of the columns
    again = CSVLogger(tmp_path, "", "run")
    again.log_metrics({"loss": 0.5}, 1)
    assert read(path) == [{"step": "1", "loss": "0.5"}]
