"""GitLab's code quality report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from distlint.baseline import fingerprints
from distlint.model import Finding
from distlint.reporters.places import relative, spot, with_trace

_SEVERITY = {"error": "major", "warning": "minor", "note": "info"}


def report_gitlab(findings: Sequence[Finding], sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as one JSON array."""
    keys = fingerprints(findings, sources)
    return json.dumps([_one(found, key) for found, key in zip(findings, keys, strict=True)], indent=1) + "\n"


def _one(found: Finding, key: str) -> dict[str, Any]:
    where, path = spot(found), relative(found.path)
    return {
        "description": with_trace(f"{found.code} {where.message}", found),
        "check_name": found.code,
        "fingerprint": hashlib.sha256(f"{path}\n{found.cell}\n{key}".encode()).hexdigest(),
        "severity": _SEVERITY[found.level],
        "location": {
            "path": path,
            "positions": {
                "begin": {"line": where.line, "column": where.column},
                "end": {"line": where.end_line, "column": where.end_column},
            },
        },
    }
