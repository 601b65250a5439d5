"""SARIF 2.1.0, the format of code scanning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from distlint import __version__
from distlint.baseline import fingerprints
from distlint.explain import markdown, title
from distlint.model import Edit, Finding, TraceStep
from distlint.reporters.places import spot, uri
from distlint.rules import RULES

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def report_sarif(findings: Sequence[Finding], sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as one run, with the pages of their rules."""
    codes = sorted({found.code: found.name for found in findings}.items())
    at = {code: number for number, (code, _) in enumerate(codes)}
    keys = fingerprints(findings, sources)
    run = {
        "tool": {
            "driver": {
                "name": "distlint",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": [_rule(code, name) for code, name in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(found, key, at[found.code]) for found, key in zip(findings, keys, strict=True)],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(code: str, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": code, "name": name}
    rule = RULES.get(code)
    if rule is None:
        return shown | {"shortDescription": {"text": title(code) or name}, "defaultConfiguration": {"level": "error"}}
    return shown | {
        "shortDescription": {"text": rule.summary()},
        "fullDescription": {"text": rule.summary()},
        "help": {"text": rule.page(), "markdown": markdown(rule)},
        "defaultConfiguration": {"level": rule.severity.value},
        "properties": {"tags": [rule.group]},
    }


def _result(found: Finding, key: str, rule: int) -> dict[str, Any]:
    where = spot(found)
    region = _region(where.line, where.column, where.end_line, where.end_column)
    result: dict[str, Any] = {
        "ruleId": found.code,
        "ruleIndex": rule,
        "level": found.level,
        "message": {"text": where.message},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri(found.path)}, "region": region}}],
        "partialFingerprints": {"distlint/v1": key},
    }
    if found.trace:
        result["relatedLocations"] = [_related(step, number) for number, step in enumerate(found.trace, 1)]
    if found.fix is not None and found.cell is None:
        replacements = [_replacement(edit) for edit in found.fix.edits]
        change = {"artifactLocation": {"uri": uri(found.path)}, "replacements": replacements}
        how = "safe" if found.fix.safe else "unsafe: may change what the code does"
        result["fixes"] = [{"description": {"text": how}, "artifactChanges": [change]}]
    return result


def _related(step: TraceStep, number: int) -> dict[str, Any]:
    text = f"{step.label}: {step.text}"
    place: dict[str, Any] = {"artifactLocation": {"uri": uri(step.path)}}
    if step.cell is None:
        place["region"] = {"startLine": step.line}
    else:
        text = f"cell {step.cell}, line {step.line}: {text}"
    return {"id": number, "message": {"text": text}, "physicalLocation": place}


def _region(line: int, column: int, end_line: int, end_column: int) -> dict[str, int]:
    return {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}


def _replacement(edit: Edit) -> dict[str, Any]:
    region = _region(edit.line, edit.column, edit.end_line, edit.end_column)
    return {"deletedRegion": region, "insertedContent": {"text": edit.text}}
