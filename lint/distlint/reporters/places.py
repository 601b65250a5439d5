"""Where findings are, in the words of other programs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from distlint.model import Finding, TraceStep


@dataclass(frozen=True)
class Spot:
    """A region of a file, with what is to be said there.

    Attributes:
        line: from 1.
        column: from 1.
        end_line: last line.
        end_column: column after the last character.
        message: what to say.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    message: str


def spot(found: Finding) -> Spot:
    """A finding's region; a notebook's file has no line for a place in a cell: its message tells."""
    if found.cell is None:
        return Spot(found.line, found.column, found.end_line, found.end_column, found.message)
    message = f"cell {found.cell}, line {found.line}, column {found.column}: {found.message}"
    return Spot(1, 1, 1, 1, message)


def with_trace(message: str, found: Finding) -> str:
    """A message, and the further places below it."""
    return "\n".join([message, *map(trace_text, found.trace)])


def trace_text(step: TraceStep) -> str:
    """A further place, as a line of text."""
    return f"{step.label} at {step.place}:{step.line}: {step.text}"


def relative(path: str) -> str:
    """A path below the current folder from there, with forward slashes; any other as it is."""
    full = Path(path).absolute()
    here = Path.cwd()
    return (full.relative_to(here) if full.is_relative_to(here) else Path(path)).as_posix()


def uri(path: str) -> str:
    """A relative reference below the current folder, a file's address elsewhere."""
    shown = relative(path)
    return Path(shown).as_uri() if Path(shown).is_absolute() else quote(os.fsencode(shown))
