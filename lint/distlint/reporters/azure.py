"""Issues in the log of Azure Pipelines: one logging command a finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlint.model import Finding
from distlint.reporters.places import relative, spot, trace_text

_TYPE = {"note": "warning"}  # there are errors and warnings alone
_DATA = str.maketrans({"%": "%AZP25", "\r": "%0D", "\n": "%0A"})
_PROPERTY = str.maketrans({"%": "%AZP25", "\r": "%0D", "\n": "%0A", ";": "%3B", "]": "%5D"})


def report_azure(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as ``##vso[task.logissue …]``."""
    return "".join(_one(found) for found in findings)


def _one(found: Finding) -> str:
    where = spot(found)
    properties = {
        "type": _TYPE.get(found.level, found.level),
        "sourcepath": relative(found.path),
        "linenumber": where.line,
        "columnnumber": where.column,
        "code": found.code,
    }
    shown = "".join(f"{key}={str(value).translate(_PROPERTY)};" for key, value in properties.items())
    text = "\n".join([where.message, *(trace_text(step) for step in found.trace)])
    return f"##vso[task.logissue {shown}]{text.translate(_DATA)}\n"
