"""The latest values of a log, on a terminal."""

from __future__ import annotations

import atexit
import importlib.util
import math
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO


class LiveTable:
    """A writer that shows the latest value of each name, and what it has changed by.

    Of an array it shows the least and the largest element.

    On a terminal, where rich is installed, it is a table that is drawn anew in its place, below
    what is printed meanwhile. Anywhere else each row is a line.

    Args:
        file: where to; default standard error.

    >>> table = LiveTable(sys.stdout)
    >>> table({"loss": 0.5, "tokens": 81920.0}, 50)
    step 50  loss 0.5  tokens 81,920
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._cells: dict[str, tuple[Any, str, int]] = {}  # latest values, their changes, steps
        self._step, self._moment = 0, math.nan  # of the row before
        self._live: Any = None

    def __call__(self, row: Mapping[str, Any], step: int) -> None:
        """Show a row."""
        now = time.monotonic()
        speed = (step - self._step) / max(now - self._moment, 1e-9)
        self._moment, self._step = now, step
        title = f"step {step:,}" + (f"  {_number(speed)} steps/s" if speed > 0 else "")
        line = title
        for name, value in row.items():
            before, *_ = self._cells.get(name, (None,))
            are_numbers = isinstance(value, float) and isinstance(before, float)
            change = _number(value - before, "+") if are_numbers and abs(value - before) > 0 else ""
            self._cells[name] = value, change, step
            line += f"  {name} {_text(value)}" + f" ({change})" * bool(change)
        file = self._file or sys.stderr
        if file.isatty() and importlib.util.find_spec("rich") is not None:
            self._draw(file, title)
        else:
            print(line, file=file, flush=True)

    def close(self) -> None:
        """Leave the table as it is; a later row begins another. Python's end does it as well."""
        if self._live is not None:
            self._live.stop()
        self._live = None

    def _draw(self, file: TextIO, title: str) -> None:
        """Draw the table, in its place if there is one."""
        from rich import box
        from rich.console import Console
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("name", no_wrap=True)
        for heading in ("value", "change", "step"):
            table.add_column(heading, justify="right", no_wrap=True)
        for name, (value, change, step) in self._cells.items():
            table.add_row(Text(name), _text(value), change, f"{step:,}")
        if self._live is None:
            # Only what would show up among the lines of the table is written above it.
            self._live = Live(
                console=Console(file=file),
                redirect_stdout=sys.stdout.isatty(),
                auto_refresh=False,
            )
            self._live.start()
            atexit.register(self.close)  # or the cursor stays hidden
        self._live.update(table, refresh=True)


def _text(value: float | list[float]) -> str:
    """Return a number, or the least and the largest of an array.

    >>> _text([3.0, 1.0, 7.5])
    '1 to 7.5'
    """
    if not isinstance(value, list):
        return _number(value)
    is_known = not any(map(math.isnan, value))
    return f"{_number(min(value))} to {_number(max(value))}" if is_known else "nan"


def _number(value: float, sign: str = "-") -> str:
    """Return a number in few letters.

    >>> [_number(value) for value in (0.00123456, 12.3456, 81920.0, 1e20, math.nan)]
    ['0.001235', '12.35', '81,920', '1e+20', 'nan']
    """
    is_short = value.is_integer() and abs(value) < 1e15
    return f"{value:{sign},.0f}" if is_short else f"{value:{sign}.4g}"
