"""One line a finding, as compilers print them: what editors, grep and scripts can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlint.model import Finding
from distlint.reporters.places import on_one_line


def report_concise(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as ``path:line:column: code message``."""
    return "".join(_one(found) for found in findings)


def _one(found: Finding) -> str:
    message = " ".join(found.message.split())
    return f"{on_one_line(found.place)}:{found.line}:{found.column}: {found.code} {message}\n"
