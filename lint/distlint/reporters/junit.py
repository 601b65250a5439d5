"""JUnit's XML: a suite for every file with findings, a failed case for each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from xml.etree import ElementTree as ET

from distlint.model import Finding
from distlint.reporters.places import relative, with_trace

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def report_junit(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as failures; a run without any is one case that has passed."""
    number = str(len(findings))
    root = ET.Element("testsuites", name="distlint", tests=str(max(1, len(findings))), failures=number, errors="0")
    for path, found in groupby(findings, key=lambda each: each.path):
        root.append(_suite(relative(path), list(found)))
    if not findings:
        suite = ET.SubElement(root, "testsuite", name="distlint", tests="1", failures="0", errors="0")
        ET.SubElement(suite, "testcase", name="no findings", classname="distlint")
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(path: str, findings: Sequence[Finding]) -> ET.Element:
    number = str(len(findings))
    suite = ET.Element("testsuite", name=_legal(path), tests=number, failures=number, errors="0")
    for found in findings:
        at = f"{found.line}:{found.column}" if found.cell is None else f"cell {found.cell}:{found.line}:{found.column}"
        case = ET.SubElement(suite, "testcase", name=f"{found.code} {at}", classname=_legal(path))
        case.set("file", _legal(path))
        if found.cell is None:
            case.set("line", str(found.line))
        failure = ET.SubElement(case, "failure", message=_legal(found.message), type=found.level)
        failure.text = _legal(with_trace(f"{path}:{at} {found.code} [{found.name}] {found.message}", found))
    return suite


def _legal(text: str) -> str:
    """Without the characters that XML has no way to write."""
    return _NOT_XML.sub("\ufffd", text)
