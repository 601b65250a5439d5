"""How findings are shown, by the name of the format."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree as ET

from distlint import __version__
from distlint.baseline import fingerprints
from distlint.finding import SYNTAX_ERROR, Finding, Related
from distlint.rules import RULES
from distlint.text import Edit

Sources = Mapping[str, Sequence[str]]
Paint = Callable[[str, str], str]
_BOLD, _DIM, _CYAN = "1", "2", "36"
_COLOURS = {"error": "1;31", "warning": "1;33"}  # red, yellow
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_FIELDS = (
    *("code", "name", "message", "path"),
    *("line", "column", "end_line", "end_column", "severity"),
)
_ESCAPED = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_GITHUB, _PROPERTY = str.maketrans(_ESCAPED), str.maketrans({**_ESCAPED, ":": "%3A", ",": "%2C"})
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Region(NamedTuple):
    """Where a finding is in its file."""

    line: int
    column: int
    end_line: int
    end_column: int


def _region(found: Finding) -> Region:
    """Return the place in the file; a notebook's file has no line for a place in a cell."""
    if found.cell is not None:
        return Region(1, 1, 1, 1)
    return Region(found.line, found.column, found.end_line, found.end_column)


def _message(found: Finding) -> str:
    if found.cell is None:
        return found.message
    return f"cell {found.cell}, line {found.line}, column {found.column}: {found.message}"


def _with_trace(message: str, found: Finding) -> str:
    return "\n".join([message, *map(_trace, found.trace)])


def _trace(step: Related) -> str:
    return f"{step.label} at {step.place}:{step.line}: {step.text}"


def _relative(path: str) -> str:
    """Return a path below the current folder from there, any other as it is."""
    full, here = Path(path).absolute(), Path.cwd()
    return (full.relative_to(here) if full.is_relative_to(here) else Path(path)).as_posix()


def _uri(path: str) -> str:
    shown = _relative(path)
    return Path(shown).as_uri() if Path(shown).is_absolute() else quote(os.fsencode(shown))


# For people


def text(findings: Sequence[Finding], sources: Sources, *, colour: bool = False) -> str:
    """Return each finding with its source and the places that explain it."""

    def paint(shown: str, style: str) -> str:
        return f"\x1b[{style}m{shown}\x1b[0m" if colour else shown

    return "".join(_frame(found, sources.get(found.place, ()), paint) for found in findings)


def _frame(found: Finding, lines: Sequence[str], paint: Paint) -> str:
    place = paint(f"{found.place}:{found.line}:{found.column}", _BOLD)
    shown = [
        f"{place} {paint(found.code, _COLOURS[found.severity])} [{found.name}] {found.message}"
    ]
    shown += [paint("  " + _trace(step), _CYAN) for step in found.trace]
    if 0 < found.line <= len(lines):
        shown += _source(found, lines, paint)
    if found.fix is not None:
        how = "--fix" if found.fix.safe else "--fix --unsafe-fixes"
        shown.append(paint(f"  {how} repairs it", _DIM))
    return "\n".join(shown) + "\n\n"


def _source(found: Finding, lines: Sequence[str], paint: Paint) -> list[str]:
    """Return the line of a finding, underlined, and the line before it."""
    width = len(str(found.line))
    first = max(1, found.line - 1)
    shown = []
    for number in range(first, found.line + 1):
        gutter = paint(f"  {number:>{width}} |", _DIM)
        shown.append(f"{gutter} {lines[number - 1]}".rstrip())
    line = lines[found.line - 1]
    end = found.end_column if found.end_line == found.line else len(line) + 1
    indent = "".join("\t" if each == "\t" else " " for each in line[: found.column - 1])
    marks = paint("^" * max(1, end - found.column), _COLOURS[found.severity])
    return [*shown, f"{paint('  ' + ' ' * width + ' |', _DIM)} {indent}{marks}"]


def concise(findings: Sequence[Finding], _sources: Sources) -> str:
    """Return one line a finding, as compilers print them."""
    lines = []
    for found in findings:
        place = found.place.replace("\r", "\\r").replace("\n", "\\n")
        said = " ".join(found.message.split())
        lines.append(f"{place}:{found.line}:{found.column}: {found.code} {said}\n")
    return "".join(lines)


# For programs


def as_json(findings: Sequence[Finding], _sources: Sources) -> str:
    """Return one JSON array of objects."""
    return json.dumps([_object(found) for found in findings], indent=1) + "\n"


def _object(found: Finding) -> dict[str, Any]:
    shown = {name: getattr(found, name) for name in _FIELDS}
    fix = found.fix
    shown["fix"] = None
    if fix is not None:
        shown["fix"] = {"safe": fix.safe, "edits": [_without_none(asdict(e)) for e in fix.edits]}
    shown["trace"] = [
        _without_none(
            {"path": s.path, "line": s.line, "text": f"{s.label}: {s.text}", "cell": s.cell}
        )
        for s in found.trace
    ]
    return shown if found.cell is None else shown | {"cell": found.cell}


def _without_none(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def github(findings: Sequence[Finding], _sources: Sources) -> str:
    """Return commands that GitHub Actions shows beside the code."""
    lines = []
    for found in findings:
        at = _region(found)
        given: dict[str, object] = {
            "file": _relative(found.path),
            "line": at.line,
            "endLine": at.end_line,
        }
        if at.line == at.end_line and at.column < at.end_column:
            given |= {"col": at.column, "endColumn": at.end_column - 1}
        given["title"] = f"{found.code} {found.name}"
        shown = ",".join(f"{key}={str(each).translate(_PROPERTY)}" for key, each in given.items())
        said = _with_trace(_message(found), found).translate(_GITHUB)
        lines.append(f"::{found.severity} {shown}::{said}\n")
    return "".join(lines)


def gitlab(findings: Sequence[Finding], sources: Sources) -> str:
    """Return GitLab's code quality report."""
    keys = fingerprints(findings, sources)
    return json.dumps([*map(_quality, findings, keys)], indent=1) + "\n"


def _quality(found: Finding, key: str) -> dict[str, Any]:
    at, path = _region(found), _relative(found.path)
    begin = {"line": at.line, "column": at.column}
    end = {"line": at.end_line, "column": at.end_column}
    return {
        "description": _with_trace(f"{found.code} {_message(found)}", found),
        "check_name": found.code,
        "fingerprint": hashlib.sha256(f"{path}\n{found.cell}\n{key}".encode()).hexdigest(),
        "severity": {"error": "major", "warning": "minor"}[found.severity],
        "location": {"path": path, "positions": {"begin": begin, "end": end}},
    }


def junit(findings: Sequence[Finding], _sources: Sources) -> str:
    """Return JUnit's XML: findings as failures; a run without any is one case that has passed."""
    number = str(len(findings))
    total = str(max(1, len(findings)))
    root = ET.Element("testsuites", name="distlint", tests=total, failures=number, errors="0")
    for path, group in groupby(findings, key=lambda each: each.path):
        _suite(root, _relative(path), list(group))
    if not findings:
        suite = ET.SubElement(root, "testsuite", name="distlint", tests="1", failures="0")
        ET.SubElement(suite, "testcase", name="no findings", classname="distlint")
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(root: ET.Element, path: str, findings: Sequence[Finding]) -> None:
    number = str(len(findings))
    suite = ET.SubElement(root, "testsuite", name=_legal(path), tests=number, failures=number)
    for found in findings:
        at = f"{found.line}:{found.column}"
        at = at if found.cell is None else f"cell {found.cell}:{at}"
        case = ET.SubElement(suite, "testcase", name=f"{found.code} {at}", classname=_legal(path))
        case.set("file", _legal(path))
        if found.cell is None:
            case.set("line", str(found.line))
        said = _legal(found.message)
        failure = ET.SubElement(case, "failure", message=said, type=found.severity)
        shown = f"{path}:{at} {found.code} [{found.name}] {found.message}"
        failure.text = _legal(_with_trace(shown, found))


def _legal(shown: str) -> str:
    """Return a text without the characters that XML has no way to write."""
    return _NOT_XML.sub("\ufffd", shown)


def sarif(findings: Sequence[Finding], sources: Sources) -> str:
    """Return SARIF 2.1.0, the format of code scanning, with the pages of the rules."""
    codes = sorted({found.code: found.name for found in findings}.items())
    at = {code: number for number, (code, _) in enumerate(codes)}
    keys = fingerprints(findings, sources)
    driver = {
        "name": "distlint",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [_rule(code, name) for code, name in codes],
    }
    results = [_result(f, key, at[f.code]) for f, key in zip(findings, keys, strict=True)]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(code: str, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": code, "name": name}
    if code == SYNTAX_ERROR:
        said = "A file, or a cell of a notebook, that cannot be read as Python."
        return shown | {
            "shortDescription": {"text": said},
            "defaultConfiguration": {"level": "error"},
        }
    from distlint.pages import markdown  # which runs the rules over their examples

    rule = RULES[code]
    return shown | {
        "shortDescription": {"text": rule.summary()},
        "fullDescription": {"text": rule.summary()},
        "help": {"text": rule.page(), "markdown": markdown(rule)},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(found: Finding, key: str, rule: int) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": _uri(found.path)}, "region": _lines(*_region(found))}
    result: dict[str, Any] = {
        "ruleId": found.code,
        "ruleIndex": rule,
        "level": found.severity,
        "message": {"text": _message(found)},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"distlint/v1": key},
    }
    if found.trace:
        result["relatedLocations"] = [*map(_related, found.trace, range(1, 1 + len(found.trace)))]
    if found.fix is not None and found.cell is None:
        change = {
            "artifactLocation": {"uri": _uri(found.path)},
            "replacements": [*map(_replacement, found.fix.edits)],
        }
        how = "safe" if found.fix.safe else "unsafe: may change what the code does"
        result["fixes"] = [{"description": {"text": how}, "artifactChanges": [change]}]
    return result


def _related(step: Related, number: int) -> dict[str, Any]:
    said = f"{step.label}: {step.text}"
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(step.path)}}
    if step.cell is None:
        place["region"] = {"startLine": step.line}
    else:
        said = f"cell {step.cell}, line {step.line}: {said}"
    return {"id": number, "message": {"text": said}, "physicalLocation": place}


def _lines(line: int, column: int, end_line: int, end_column: int) -> dict[str, int]:
    start = {"startLine": line, "startColumn": column}
    return {**start, "endLine": end_line, "endColumn": end_column}


def _replacement(edit: Edit) -> dict[str, Any]:
    region = _lines(edit.line, edit.column, edit.end_line, edit.end_column)
    return {"deletedRegion": region, "insertedContent": {"text": edit.text}}


REPORTERS: dict[str, Callable[[Sequence[Finding], Sources], str]] = {
    "concise": concise,
    "github": github,
    "gitlab": gitlab,
    "json": as_json,
    "junit": junit,
    "sarif": sarif,
    "text": text,
}
