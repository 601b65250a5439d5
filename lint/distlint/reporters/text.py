"""For people: one line a finding, the source it is about, and the places that explain it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlint.model import Finding


def report_text(findings: Sequence[Finding], sources: Mapping[str, Sequence[str]]) -> str:
    """All findings with source frames.

    Args:
        findings: in the order to print.
        sources: the lines of every file with findings.
    """
    return "".join(_one(found, sources.get(found.path, ())) for found in findings)


def _one(found: Finding, lines: Sequence[str]) -> str:
    shown = [f"{found.path}:{found.line}:{found.column} {found.code} [{found.name}] {found.message}"]
    shown += [f"  {step.label} at {step.path}:{step.line}: {step.text}" for step in found.trace]
    if 0 < found.line <= len(lines):
        shown += _frame(found, lines)
    return "\n".join(shown) + "\n\n"


def _frame(found: Finding, lines: Sequence[str]) -> list[str]:
    """The line of the finding, underlined, with the line before it."""
    width = len(str(found.line))
    first = max(1, found.line - 1)
    shown = [f"  {number:>{width}} | {lines[number - 1]}".rstrip() for number in range(first, found.line + 1)]
    text = lines[found.line - 1]
    end = found.end_column if found.end_line == found.line else len(text) + 1
    indent = "".join("\t" if character == "\t" else " " for character in text[: found.column - 1])
    shown.append(f"  {'':>{width}} | {indent}{'^' * max(1, end - found.column)}")
    return shown
