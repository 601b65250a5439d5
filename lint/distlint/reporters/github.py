"""Annotations in the log of GitHub Actions: one workflow command a finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlint.model import Finding
from distlint.reporters.places import relative, spot, trace_text

_LEVEL = {"note": "notice"}
_DATA = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"})


def report_github(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as ``::error …``, ``::warning …`` and ``::notice …``."""
    return "".join(_one(found) for found in findings)


def _one(found: Finding) -> str:
    where = spot(found)
    properties: dict[str, object] = {"file": relative(found.path), "line": where.line, "endLine": where.end_line}
    if where.line == where.end_line and where.column < where.end_column:
        properties |= {"col": where.column, "endColumn": where.end_column - 1}
    properties["title"] = f"{found.code} {found.name}"
    shown = ",".join(f"{key}={str(value).translate(_PROPERTY)}" for key, value in properties.items())
    text = "\n".join([where.message, *(trace_text(step) for step in found.trace)])
    return f"::{_LEVEL.get(found.level, found.level)} {shown}::{text.translate(_DATA)}\n"
