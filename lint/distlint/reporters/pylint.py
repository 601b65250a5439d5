"""The lines that flake8 and ruff call pylint's, for what reads those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlint.model import Finding
from distlint.reporters.places import on_one_line, relative, spot


def report_pylint(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as ``path:line: [code] message``."""
    return "".join(_one(found) for found in findings)


def _one(found: Finding) -> str:
    where = spot(found)
    message = " ".join(where.message.split())
    return f"{on_one_line(relative(found.path))}:{where.line}: [{found.code}] {message}\n"
