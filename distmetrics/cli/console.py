"""What all commands print with: rich, where it is installed."""

from __future__ import annotations

import io
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console(width: int = 120, **options: Any) -> Console:
    """Return a console; of ``width`` letters where it writes into a file, which has no edge."""
    from rich.console import Console

    made = Console(highlight=False, **options)
    if not made.is_terminal:
        made.width = width
    return made


def table(*columns: str, **options: Any) -> Table:
    """Return an empty table in the style of all commands, whose first column keeps its lines."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, **options)
    for place, heading in enumerate(columns):
        made.add_column(heading, no_wrap=place == 0)
    return made


def progress(text: str, *, quiet: bool) -> AbstractContextManager[Any]:
    """Show what is going on while the block runs, unless ``quiet``."""
    return nullcontext() if quiet else console(stderr=True).status(f"{text} …")


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts.

    >>> counted(1, "rank"), counted(2, "rank"), counted(0, "warning")
    ('1 rank', '2 ranks', 'no warnings')
    """
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"


class _Output(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def bear_closed_pipes() -> None:
    """Let this process drop what nobody reads any more, as in ``| head``, and go on to its end."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not stream.isatty():
            raw = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
            kept = {"encoding": stream.encoding, "errors": stream.errors}
            setattr(sys, name, io.TextIOWrapper(raw, line_buffering=name == "stderr", **kept))
