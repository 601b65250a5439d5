"""Whether a text is Python, of whatever version."""

from __future__ import annotations

import re
import warnings
from typing import NamedTuple

import libcst as cst


_MESSAGE = re.compile(r"parser error: error at (\d+):(\d+): (.*)", re.DOTALL)


class Broken(NamedTuple):
    """Where and why a text is no Python; line and column from 1."""

    line: int
    column: int
    message: str


def error_of(text: str) -> Broken | None:
    """Return what is wrong with a text, or None.

    This Python is asked first, since it is quick; what it cannot read may be newer than it is.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return parse_error(text)
    return None


def parse_error(text: str) -> Broken | None:
    """Return what LibCST cannot read in a text, or None."""
    try:
        cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        return broken(error)
    except RecursionError:
        return Broken(1, 1, "too deeply nested")
    return None


def broken(error: cst.ParserSyntaxError) -> Broken:
    """Return the place and reason of an error of LibCST."""
    found = _MESSAGE.match(error.message)
    if found is None:
        return Broken(max(1, error.raw_line), error.raw_column + 1, error.message)
    return Broken(max(1, int(found[1])), int(found[2]) + 1, found[3])
