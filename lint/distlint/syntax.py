"""Whether a text is Python, of whatever version."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, NamedTuple

from distlint.text import TOKENS, split_lines

if TYPE_CHECKING:
    import libcst as cst

_MESSAGE = re.compile(r"parser error: error at (\d+):(\d+): (.*)", re.DOTALL)


# LibCST's parser, which is no Python, ends the process where it runs out of stack.
_DEEPEST = 200  # brackets in brackets, as in Python
_LONGEST = 1000  # operators, attributes or strings that follow each other in one expression
_BRACKETS = bytes.maketrans(b"[{]}", b"(())")
_OTHERS = bytes(each for each in range(256) if each not in b"()[]{}")


class Broken(NamedTuple):
    """Where and why a text is no Python; line and column from 1."""

    line: int
    column: int
    message: str


TOO_DEEP = Broken(1, 1, "too deeply nested")


def is_too_deep(text: str) -> bool:
    """Return whether an expression, or a chain of branches, is nested deeper than can be read."""
    if text.count("elif") > _LONGEST or _depth(text) > _DEEPEST:
        return True
    parts = (part for piece in text.split(",") for part in piece.split("\n\n"))
    return max(map(len, parts)) > 2 * _LONGEST and _longest(text) > _LONGEST


def _depth(text: str) -> int:
    """Return how deep brackets are nested, those in strings and comments included."""
    left = text.encode("utf-8", "replace").translate(_BRACKETS, _OTHERS)
    for depth in range(_DEEPEST + 1):
        inner = left.replace(b"()", b"")
        if inner == left:
            return depth
        left = inner
    return _DEEPEST + 1


def _longest(text: str) -> int:
    """Return how many words, operators and strings the longest chain without a comma has."""
    most, counts = 0, [0]
    for token in TOKENS.finditer(text):
        mark = token["mark"]
        counts[-1] += 1
        most = max(most, counts[-1])
        if mark is None:
            continue
        if mark in "([{":
            counts.append(0)
        elif mark in ")]}":
            counts = counts[:-1] or [0]
        elif mark in ",;" or (mark == "\n" and len(counts) == 1):
            counts[-1] = 0
    return most


def error_of(text: str) -> Broken | None:
    """Return what is wrong with a text, or None.

    This Python is asked first, since it is quick and says best what is wrong; what it cannot read
    may be newer than it is.
    """
    if is_too_deep(text):
        return TOO_DEEP
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "", "exec", dont_inherit=True)
    except SyntaxError as error:
        return _newer(text, error)
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return _newer(text, None)
    return None


def _newer(text: str, said: SyntaxError | None) -> Broken | None:
    """Return what is wrong with a text that this Python cannot read, None if LibCST can."""
    import libcst as cst  # slow to import, and most runs have no such text

    try:
        cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        return broken(text, error, said)
    except RecursionError:
        return TOO_DEEP
    return None


def broken(text: str, error: cst.ParserSyntaxError, said: SyntaxError | None = None) -> Broken:
    """Return the place and reason of an error, as Python says it or else as LibCST does."""
    found = _MESSAGE.match(error.message)
    line, column, message = error.raw_line, error.raw_column + 1, error.message
    if said is not None and said.lineno is not None:
        line, column, message = said.lineno, said.offset or 1, said.msg
    elif "\0" in text:
        line = 1 + text.count("\n", 0, text.index("\0"))
    elif found is not None:
        line, column, message = int(found[1]), int(found[2]) + 1, found[3]
    lines = split_lines(text) or [""]
    line = min(max(1, line), len(lines))
    return Broken(line, min(max(1, column), len(lines[line - 1]) + 1), message)
