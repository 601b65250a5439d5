"""What people and programs are shown."""

from __future__ import annotations

import json
from dataclasses import replace

from distlint.model import Edit, Finding, Fix, Severity
from distlint.reporters import REPORTERS, report_json, report_text
from tests.lint.helpers import check

SOURCE = "import torch.distributed as dist\nif dist.get_rank() == 0:\n\tdist.barrier()\n"
HOIST = [
    {"line": 2, "column": 1, "end_line": 2, "end_column": 1, "text": "dist.barrier()\n"},
    {"line": 3, "column": 2, "end_line": 3, "end_column": 16, "text": "pass"},
]


def test_text_shows_place_guard_and_source() -> None:
    text = report_text(check(SOURCE), {"model.py": SOURCE.splitlines()})
    assert text == (
        "model.py:3:2 DL101 [collective-under-rank-guard] only rank 0 reaches this barrier: it waits for ever\n"
        "  guard at model.py:2: if dist.get_rank() == 0\n"
        "  2 | if dist.get_rank() == 0:\n"
        "  3 | \tdist.barrier()\n"
        "    | \t^^^^^^^^^^^^^^\n"
        "\n"
    )


def test_text_without_source() -> None:
    assert "|" not in report_text(check(SOURCE), {})
    assert report_text([], {}) == ""


def test_text_of_a_finding_over_several_lines_and_past_the_end() -> None:
    found = Finding("DL000", "syntax-error", "m", "x.py", 1, 3, 4, 2)
    assert report_text([found], {"x.py": ["ab(cd"]}).splitlines()[-3:] == ["  1 | ab(cd", "    |   ^^^", ""]
    assert "|" not in report_text([replace(found, line=9, end_line=9)], {"x.py": ["ab"]})


def test_json_has_exactly_the_documented_fields() -> None:
    (item,) = json.loads(report_json(check(SOURCE), {}))
    assert item == {
        "code": "DL101",
        "name": "collective-under-rank-guard",
        "message": "only rank 0 reaches this barrier: it waits for ever",
        "path": "model.py",
        "line": 3,
        "column": 2,
        "end_line": 3,
        "end_column": 16,
        "severity": "error",
        "fix": {"safe": False, "edits": HOIST},
        "trace": [{"path": "model.py", "line": 2, "text": "guard: if dist.get_rank() == 0"}],
    }


def test_json_of_a_fix() -> None:
    fix = Fix(True, (Edit(1, 2, 1, 3, "x"),))
    found = Finding("DL001", "hard-coded-device", "m", "x.py", 1, 2, 1, 3, Severity.WARNING, fix)
    (item,) = json.loads(report_json([found], {}))
    edit = {"line": 1, "column": 2, "end_line": 1, "end_column": 3, "text": "x"}
    assert item["fix"] == {"safe": True, "edits": [edit]}
    assert item["severity"] == "warning"


def test_json_of_nothing_is_an_empty_array() -> None:
    assert json.loads(report_json([], {})) == []


def test_formats_by_name() -> None:
    assert sorted(REPORTERS) == ["json", "text"]
