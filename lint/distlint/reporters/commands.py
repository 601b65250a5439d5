"""Commands in the log of a job, which GitHub Actions and Azure Pipelines show beside the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlint.model import Finding
from distlint.reporters.places import relative, spot, with_trace

_LINE_ENDS = {"\r": "%0D", "\n": "%0A"}
_GITHUB = str.maketrans({"%": "%25", **_LINE_ENDS})
_GITHUB_PROPERTY = str.maketrans({"%": "%25", **_LINE_ENDS, ":": "%3A", ",": "%2C"})
_AZURE = str.maketrans({"%": "%AZP25", **_LINE_ENDS})
_AZURE_PROPERTY = str.maketrans({"%": "%AZP25", **_LINE_ENDS, ";": "%3B", "]": "%5D"})


def report_github(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as ``::error …``, ``::warning …`` and ``::notice …``."""
    return "".join(map(_for_github, findings))


def _for_github(found: Finding) -> str:
    where = spot(found)
    properties: dict[str, object] = {"file": relative(found.path), "line": where.line, "endLine": where.end_line}
    if where.line == where.end_line and where.column < where.end_column:
        properties |= {"col": where.column, "endColumn": where.end_column - 1}
    properties["title"] = f"{found.code} {found.name}"
    shown = ",".join(f"{key}={str(value).translate(_GITHUB_PROPERTY)}" for key, value in properties.items())
    level = "notice" if found.level == "note" else found.level
    return f"::{level} {shown}::{with_trace(where.message, found).translate(_GITHUB)}\n"


def report_azure(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as ``##vso[task.logissue …]``, of which there are errors and warnings alone."""
    return "".join(map(_for_azure, findings))


def _for_azure(found: Finding) -> str:
    where = spot(found)
    properties = {
        "type": "warning" if found.level == "note" else found.level,
        "sourcepath": relative(found.path),
        "linenumber": where.line,
        "columnnumber": where.column,
        "code": found.code,
    }
    shown = "".join(f"{key}={str(value).translate(_AZURE_PROPERTY)};" for key, value in properties.items())
    return f"##vso[task.logissue {shown}]{with_trace(where.message, found).translate(_AZURE)}\n"
