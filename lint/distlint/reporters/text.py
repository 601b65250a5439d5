"""For people: one line a finding, the source it is about, and the places that explain it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from distlint.model import Finding
from distlint.reporters.places import trace_text

_BOLD, _DIM, _CYAN = "1", "2", "36"
_BY_LEVEL = {"error": "1;31", "warning": "1;33", "note": "1;34"}  # red, yellow, blue
Paint = Callable[[str, str], str]


def report_text(findings: Sequence[Finding], sources: Mapping[str, Sequence[str]], *, colour: bool = False) -> str:
    """All findings with source frames.

    Args:
        findings: in the order to print.
        sources: the lines of every file with findings.
        colour: for a terminal.
    """
    paint = _coloured if colour else _plain
    return "".join(_one(found, sources.get(found.place, ()), paint) for found in findings)


def _plain(text: str, _style: str) -> str:
    return text


def _coloured(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m"


def _one(found: Finding, lines: Sequence[str], paint: Paint) -> str:
    place = paint(f"{found.place}:{found.line}:{found.column}", _BOLD)
    code = paint(found.code, _BY_LEVEL[found.level])
    review = ", review" * (found.confidence == "review")
    shown = [f"{place} {code} [{found.name}{review}] {found.message}"]
    shown += [paint("  " + trace_text(step), _CYAN) for step in found.trace]
    if 0 < found.line <= len(lines):
        shown += _frame(found, lines, paint)
    if found.fix is not None:
        how = "--fix" if found.fix.safe else "--fix --unsafe-fixes"
        shown.append(paint(f"  {how} repairs it", _DIM))
    return "\n".join(shown) + "\n\n"


def _frame(found: Finding, lines: Sequence[str], paint: Paint) -> list[str]:
    """The line of the finding, underlined, with the line before it."""
    width = len(str(found.line))
    first = max(1, found.line - 1)
    gutter = [paint(f"  {number:>{width}} |", _DIM) for number in range(first, found.line + 1)]
    shown = [f"{left} {line}".rstrip() for left, line in zip(gutter, lines[first - 1 : found.line], strict=True)]
    text = lines[found.line - 1]
    end = found.end_column if found.end_line == found.line else len(text) + 1
    indent = "".join("\t" if character == "\t" else " " for character in text[: found.column - 1])
    marks = paint("^" * max(1, end - found.column), _BY_LEVEL[found.level])
    return [*shown, f"{paint('  ' + ' ' * width + ' |', _DIM)} {indent}{marks}"]
