"""The public reports: every chosen thread has a program, which shows what is kept of it."""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Any

import pytest

from benchmarks import reports
from benchmarks.reports.__main__ import COLUMNS, kept
from distmetrics import DivergedError
from distmetrics.comm.verdict import Outcome

REPORTS = reports.reports()
THREADS = [name for name, report in REPORTS.items() if report.BACKEND == "threads"]
look = functools.cache(reports.look)


def judged(report: Any) -> None:
    """What a program shows is what the table says."""
    seen, row = look(report), kept()[report.THREAD]
    told = {"naive": seen.naive, "ours": seen.ours, "right": seen.right, "now": seen.verdict}
    assert told == {name: row[name] for name in told}
    assert seen.naive != seen.right


@pytest.mark.parametrize("name", THREADS)
def test_on_threads(name: str) -> None:
    judged(REPORTS[name])


@pytest.mark.gloo
@pytest.mark.parametrize("name", ["pytorch_156627", "ultralytics_22541"])
def test_on_processes(name: str) -> None:
    judged(REPORTS[name])


@pytest.mark.gloo
def test_a_hang_is_told_on_processes() -> None:
    ended, _ = reports.run(REPORTS["ultralytics_24536"], "ours")
    assert any(isinstance(each.error, DivergedError) for each in ended)


def chosen() -> set[str]:
    with (Path(reports.__file__).parent / "chosen_evaluation.csv").open(newline="") as file:
        return {row["thread"] for row in csv.DictReader(file)}


def test_no_chosen_thread_is_left_out() -> None:
    threads = [report.THREAD for report in REPORTS.values()]
    assert len(chosen()) == 28
    assert chosen() <= set(threads)
    assert sorted(kept()) == sorted(threads)


def test_none_is_silent() -> None:
    assert not {row["now"] for row in kept().values()} & {"silent", "hangs"}


def test_rows_are_whole() -> None:
    for row in kept().values():
        assert tuple(row) == COLUMNS
        assert row["date"][:4] >= "2025"
        assert row["symptom"]
        assert row["first"]
        if row["now"] in ("told", "late", "cannot be told"):
            assert row["said"]


@pytest.mark.parametrize(
    ("values", "said", "verdict"),
    [
        ((1.0, 1.0), "", "right"),
        ((1.0, None), "", "right"),
        ((1.0, 2.0), "", "silent"),
        ((2.0, 2.0), "1 of 6 samples are repeats", "told"),
        ((None, None), "", "silent"),
        ((1.0, RuntimeError("x")), "x", "told"),
        ((2.0, RuntimeError("x")), "x", "silent"),
        ((1.0, RuntimeError("x, or allow more time: DISTMETRICS_TIMEOUT=SECONDS")), "x", "late"),
        ((1.0, RuntimeError("was stopped: the limit of this run")), "x", "hangs"),
    ],
)
def test_verdicts(values: tuple[Any, ...], said: str, verdict: str) -> None:
    ended = [
        Outcome(rank, error=value) if isinstance(value, Exception) else Outcome(rank, value)
        for rank, value in enumerate(values)
    ]
    assert reports.verdict_of(ended, 1.0, said) == verdict
