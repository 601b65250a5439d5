"""For programs: one array of objects, or one object a line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from distlint.model import Finding, TraceStep


def report_json(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as one JSON array."""
    return json.dumps([_one(found) for found in findings], indent=1) + "\n"


def report_json_lines(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as one JSON object a line."""
    return "".join(json.dumps(_one(found)) + "\n" for found in findings)


def _one(found: Finding) -> dict[str, Any]:
    fix = None
    if found.fix is not None:
        fix = {"safe": found.fix.safe, "edits": [_without_none(asdict(edit)) for edit in found.fix.edits]}
    shown = {
        "code": found.code,
        "name": found.name,
        "message": found.message,
        "path": found.path,
        "line": found.line,
        "column": found.column,
        "end_line": found.end_line,
        "end_column": found.end_column,
        "severity": found.severity.value,
        "confidence": found.confidence,
        "fix": fix,
        "trace": [_step(step) for step in found.trace],
    }
    return shown if found.cell is None else shown | {"cell": found.cell}


def _step(step: TraceStep) -> dict[str, Any]:
    shown = {"path": step.path, "line": step.line, "text": f"{step.label}: {step.text}", "cell": step.cell}
    return _without_none(shown)


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    """Only places in notebooks name a cell."""
    return {name: value for name, value in fields.items() if value is not None}
