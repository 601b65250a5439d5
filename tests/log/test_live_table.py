"""A table on a terminal, drawn in its place; lines anywhere else."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import pytest

from distmetrics.log import LiveTable, writers

ROWS: list[tuple[int, dict[str, Any]]] = [
    (50, {"loss": 2.0, "tokens": 81920.0, "val[0]": 0.5}),
    (100, {"loss": math.nan, "tokens": 163840.0}),
    (150, {"loss": 1.25, "tokens": 245760.0}),
    (200, {"loss": 0.12345678, "tokens": 327680.0, "lr": 3e-4}),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let four seconds pass between two rows."""
    moments = iter(range(0, 400, 4))
    monkeypatch.setattr(writers.time, "monotonic", lambda: next(moments))


def shown(file: io.StringIO, rows: Any = ROWS) -> str:
    table = LiveTable(file)
    for step, row in rows:
        table(row, step)
    table.close()
    return file.getvalue()


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or no rich. Whole numbers have all their digits; a run that goes back has no speed."""
    lines = [
        "step 50  loss 2  tokens 81,920  val[0] 0.5",
        "step 100  12.5 steps/s  loss nan  tokens 163,840 (+81,920)",
        "step 150  12.5 steps/s  loss 1.25  tokens 245,760 (+81,920)",
        "step 200  12.5 steps/s  loss 0.123457 (-1.12654)  tokens 327,680 (+81,920)  lr 0.0003",
    ]
    assert shown(io.StringIO()).splitlines() == lines
    rows = [(2, {"tokens": 81_920_001.0, "loss": 1e20}), (2, {"tokens": 163_840_002.0, "counts": [0.5, 1234567.0]})]
    assert shown(io.StringIO(), [*rows, (1, {})]).splitlines() == [
        "step 2  tokens 81,920,001  loss 1e+20",
        "step 2  tokens 163,840,002 (+81,920,001)  counts 0.5 to 1,234,567",
        "step 1",
    ]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert shown(Terminal()).splitlines() == lines


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out = shown(Terminal())
    assert out.startswith("\x1b[?25l")  # hides the cursor
    assert out.rstrip().endswith("\x1b[?25h")  # and shows it again
    drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.rpartition("\x1b[1A\x1b[2K")[2])
    assert [line.split() for line in drawn.splitlines() if line.strip()] == [
        ["step", "200", "12.5", "steps/s"],
        ["name", "value", "change", "step"],
        ["─" * 37],
        ["loss", "0.123457", "-1.12654", "200"],
        ["tokens", "327,680", "+81,920", "200"],
        ["val[0]", "0.5", "50"],
        ["lr", "0.0003", "200"],
    ]


def test_the_cursor_comes_back_when_nobody_closes_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    at_the_end: list[Any] = []
    monkeypatch.setattr("atexit.register", at_the_end.append)
    table = LiveTable(file := Terminal())
    table({"loss": 1.0}, 1)
    assert "?25h" not in file.getvalue()
    for each in at_the_end:
        each()
    assert file.getvalue().rstrip().endswith("\x1b[?25h")


def test_the_default_is_standard_error_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    LiveTable()({"loss": 1.0}, 1)
    assert capsys.readouterr() == ("", "step 1  loss 1\n")
