"""Rows reach each writer once, on one rank, whatever another one raises and in whichever thread the exchange runs."""

from __future__ import annotations

import csv
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import distmetrics as dm
from distmetrics.errors import ConfigurationError
from distmetrics.log import CSVLogger, LiveTable, Logger, TensorBoardLogger
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
    expected = [
        (step, {"x": float(sum(step * 10 + rank for rank in range(world_size)))}) for step in range(1, len(script) + 1)
    ]
    (first, second, plain, saved, errors, is_mine), *others = run(world_size, scripted, script, tuple(fails_at))
    assert first == second == plain == expected
    assert saved == [step for step, _ in expected]
    failed = sorted(fails_at & {*range(1, len(script) + 1)})
    note = "Raised by writer 1 of 3, Kept, at step {}; the other writers went on."
    assert errors == [f"no space at {step} ({note.format(step)})" for step in failed]
    assert is_mine
    assert others == [([], [], [], [], [], True)] * (world_size - 1)


def test_a_row_that_is_refused_is_not_written_and_a_writer_that_ends_its_rank_keeps_nobody_waiting() -> None:
    def work(comm: Any) -> None:
        steps: list[int] = []
        log = dm.Log(comm, writers=[lambda row, step: steps.append(step)])
        for wait in (True, False):
            log.same("epoch", comm.rank)
            with pytest.raises(dm.MismatchError, match="'epoch' was logged as the same on all ranks, and is not"):
                log.flush() if wait else log.flush(wait=False).result()
            log.same("epoch", 3)
        log.flush()
        assert steps == ([] if comm.rank else [3])  # two flushes before it have failed
        dm.Log(comm, writers=[Kept((1,))]).flush()
        dm.barrier(comm=comm)

    first, second = outcomes(2, work)
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


def test_hyperparameters_are_nested_and_names_may_hold_ends_of_lines_that_csv_has_not(tmp_path: Path) -> None:
    params = {"lr": 0.1, "model": {"depth": 2, "sizes": [8, 8]}, "dtype": torch.float32}
    CSVLogger(tmp_path, "", "run").log_hyperparams(params)
    written = json.loads((tmp_path / "run" / "hparams.json").read_text())
    assert written == params | {"dtype": "torch.float32"}
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
