"""Reviewdog's diagnostic format, whose columns count bytes of UTF-8."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from distlint.model import Finding
from distlint.reporters.places import relative, spot, with_trace

_SEVERITY = {"error": "ERROR", "warning": "WARNING", "note": "INFO"}


def report_rdjson(findings: Sequence[Finding], sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as one JSON object."""
    shown = {
        "source": {"name": "distlint"},
        "diagnostics": [_one(found, sources.get(found.place, ())) for found in findings],
    }
    return json.dumps(shown, indent=1) + "\n"


def _one(found: Finding, lines: Sequence[str]) -> dict[str, Any]:
    where = spot(found)
    region = (where.line, where.column, where.end_line, where.end_column)
    shown: dict[str, Any] = {
        "message": with_trace(where.message, found),
        "location": {"path": relative(found.path), "range": _range(region, lines)},
        "severity": _SEVERITY[found.level],
        "code": {"value": found.code},
    }
    edits = found.fix.edits if found.fix is not None and found.cell is None else ()
    if len(edits) == 1:  # each suggestion is taken or left: half a fix would be none
        (edit,) = edits
        place = (edit.line, edit.column, edit.end_line, edit.end_column)
        shown["suggestions"] = [{"range": _range(place, lines), "text": edit.text}]
    return shown


def _range(region: tuple[int, int, int, int], lines: Sequence[str]) -> dict[str, Any]:
    line, column, end_line, end_column = region
    return {"start": _position(line, column, lines), "end": _position(end_line, end_column, lines)}


def _position(line: int, column: int, lines: Sequence[str]) -> dict[str, int]:
    before = lines[line - 1][: column - 1] if line <= len(lines) else ""
    return {"line": line, "column": column + len(before.encode("utf-8", "surrogatepass")) - len(before)}
