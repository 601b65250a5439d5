"""The latest values of a log, on a terminal."""

from __future__ import annotations

import atexit
import importlib.util
import math
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

_LARGE, _LARGEST = 1e3, 1e15  # from here on without decimals that matter; with an exponent


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
        # By name: the latest value; in a text, and what it has changed by; the step of its row.
        self._latest: dict[str, tuple[Any, str, str, int]] = {}
        self._step = 0
        self._moment = math.nan  # of the row before
        self._live: Any = None

    def __call__(self, row: Mapping[str, Any], step: int) -> None:
        """Show a row."""
        now = time.monotonic()
        speed = (step - self._step) / max(now - self._moment, 1e-9)
        self._moment, self._step = now, step
        for name, value in row.items():
            before = self._latest[name][0] if name in self._latest else value
            change = math.nan
            if not isinstance(value, list) and not isinstance(before, list):
                change = value - before
            is_shown = not math.isnan(change) and change != 0
            text = "+" * (change > 0) + _number(change) if is_shown else ""
            self._latest[name] = value, _text(value), text, step
        title = f"step {step:,}" + (f"  {_number(speed)} steps/s" if speed > 0 else "")
        file = self._file or sys.stderr
        if file.isatty() and importlib.util.find_spec("rich") is not None:
            self._draw(file, title)
            return
        parts = [title]
        for name in row:
            _, text, change_text, _ = self._latest[name]
            parts.append(f"{name} {text}" + f" ({change_text})" * bool(change_text))
        print(*parts, sep="  ", file=file, flush=True)

    def close(self) -> None:
        """Leave the table as it is; a later row begins another. Python's end does it as well."""
        if self._live is not None:
            self._live.stop()
            atexit.unregister(self.close)
        self._live = None

    def _draw(self, file: TextIO, title: str) -> None:
        """Draw the table, in its place if there is one; names that the row has not are dim."""
        from rich import box
        from rich.console import Console
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text

        options: Any = {"box": box.SIMPLE_HEAD, "pad_edge": False, "show_edge": False}
        table = Table(title=title, title_justify="left", **options)
        table.add_column("name", no_wrap=True)
        for heading in ("value", "change", "step"):
            table.add_column(heading, justify="right", no_wrap=True)
        for name, (_, *cells, step) in self._latest.items():
            style = "" if step == self._step else "dim"
            table.add_row(Text(name), *cells, f"{step:,}", style=style)
        if self._live is None:
            # Only what would show up among the lines of the table is written above it.
            options = {"redirect_stdout": sys.stdout.isatty(), "auto_refresh": False}
            self._live = Live(console=Console(file=file), **options)
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
    if any(map(math.isnan, value)):
        return "nan"
    return f"{_number(min(value))} to {_number(max(value))}"


def _number(value: float) -> str:
    """Return a number in few letters.

    >>> [_number(value) for value in (0.00123456, 12.3456, 1234.56, 81920.0, 1e20, math.nan)]
    ['0.001235', '12.35', '1,234.6', '81,920', '1e+20', 'nan']
    """
    if value.is_integer() and abs(value) < _LARGEST:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if _LARGE <= abs(value) < _LARGEST else f"{value:.4g}"
