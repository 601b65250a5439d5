"""What people and programs are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distlint import __version__
from distlint.model import Condition, Edit, Finding, Fix, Severity, TraceStep
from distlint.reporters import REPORTERS, report_json, report_text
from distlint.rules import RULES
from tests.lint.helpers import check

SOURCE = "import torch.distributed as dist\nif dist.get_rank() == 0:\n\tdist.barrier()\n"
LINES = {"model.py": SOURCE.splitlines()}
BROKEN = Finding("DL000", "syntax-error", "m", "x.py", 1, 3, 4, 2)
IN_CELL = Finding(
    "DL101",
    "collective-under-rank-guard",
    "100% hangs:\nfor ever, yes",
    "a b/é,1:2.ipynb",
    2,
    5,
    2,
    9,
    trace=(TraceStep("a b/é,1:2.ipynb", 1, "guard", "if rank == 0", cell=3),),
    fix=Fix(False, (Edit(2, 5, 2, 9, "x", cell=3),)),
    cell=3,
)

REVIEW = Finding("DL202", "some-name", "m", "x.py", 1, 2, 1, 3, condition=Condition("devices", "if there are many"))


def report(name: str, findings: Sequence[Finding]) -> str:
    return REPORTERS[name](findings, LINES)


def test_text_shows_place_guard_and_source() -> None:
    (found,) = check(SOURCE)
    text = report_text([replace(found, fix=None)], LINES)
    assert text == (
        "model.py:3:2 DL101 [collective-under-rank-guard] only rank 0 reaches this barrier: it waits for ever\n"
        "  guard at model.py:2: if dist.get_rank() == 0\n"
        "  2 | if dist.get_rank() == 0:\n"
        "  3 | \tdist.barrier()\n"
        "    | \t^^^^^^^^^^^^^^\n"
        "\n"
    )


@pytest.mark.parametrize(("safe", "how"), [(True, "--fix"), (False, "--fix --unsafe-fixes")])
def test_text_tells_how_to_fix(safe: bool, how: str) -> None:
    (found,) = check(SOURCE)
    fix = Fix(safe, (Edit(1, 1, 1, 1, "x"),))
    assert report_text([replace(found, fix=fix)], LINES).endswith(f"^\n  {how} repairs it\n\n")


def test_text_in_colour_says_the_same() -> None:
    plain, coloured = (report_text(check(SOURCE), LINES, colour=colour) for colour in (False, True))
    assert "\x1b[1;31mDL101\x1b[0m" in coloured
    for style in ("0", "1", "2", "36", "1;31"):
        coloured = coloured.replace(f"\x1b[{style}m", "")
    assert coloured == plain


def test_text_without_source() -> None:
    assert "|" not in report_text(check(SOURCE), {})
    assert report_text([], {}) == ""


def test_text_of_a_finding_over_several_lines_and_past_the_end() -> None:
    assert report_text([BROKEN], {"x.py": ["ab(cd"]}).splitlines()[-3:] == ["  1 | ab(cd", "    |   ^^^", ""]
    assert "|" not in report_text([replace(BROKEN, line=9, end_line=9)], {"x.py": ["ab"]})


def test_text_of_a_notebook_names_the_cell() -> None:
    text = report_text([IN_CELL], {IN_CELL.place: ["if rank == 0:", "    gather()"]})
    assert text.startswith("a b/é,1:2.ipynb:cell 3:2:5 DL101 ")
    assert "guard at a b/é,1:2.ipynb:cell 3:1: if rank == 0" in text
    assert "  2 |     gather()\n" in text


def test_json_has_exactly_the_documented_fields() -> None:
    (found,) = check(SOURCE)
    (item,) = json.loads(report_json([replace(found, fix=None)], {}))
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
        "confidence": "sure",
        "fix": None,
        "trace": [{"path": "model.py", "line": 2, "text": "guard: if dist.get_rank() == 0"}],
    }


def test_json_of_a_fix() -> None:
    fix = Fix(True, (Edit(1, 2, 1, 3, "x"),))
    found = Finding("DL001", "hard-coded-device", "m", "x.py", 1, 2, 1, 3, Severity.WARNING, fix)
    (item,) = json.loads(report_json([found], {}))
    edit = {"line": 1, "column": 2, "end_line": 1, "end_column": 3, "text": "x"}
    assert item["fix"] == {"safe": True, "edits": [edit]}
    assert item["severity"] == "warning"


def test_json_of_a_notebook_has_the_cell_as_well() -> None:
    (item,) = json.loads(report_json([IN_CELL], {}))
    assert item["cell"] == item["trace"][0]["cell"] == item["fix"]["edits"][0]["cell"] == 3


def test_json_of_nothing_is_an_empty_array() -> None:
    assert json.loads(report_json([], {})) == []


def test_github_escapes_what_its_commands_would_swallow() -> None:
    assert report("github", [*check(SOURCE), IN_CELL]).splitlines() == [
        (
            "::error file=model.py,line=3,endLine=3,col=2,endColumn=15,title=DL101 collective-under-rank-guard"
            "::only rank 0 reaches this barrier: it waits for ever%0Aguard at model.py:2: if dist.get_rank() == 0"
        ),
        (
            "::error file=a b/é%2C1%3A2.ipynb,line=1,endLine=1,title=DL101 collective-under-rank-guard"
            "::cell 3, line 2, column 5: 100%25 hangs:%0Afor ever, yes"
            "%0Aguard at a b/é,1:2.ipynb:cell 3:1: if rank == 0"
        ),
    ]
    assert report("github", [replace(BROKEN, severity=Severity.WARNING)]) == (
        "::warning file=x.py,line=1,endLine=4,title=DL000 syntax-error::m\n"
    )


def test_gitlab() -> None:
    first, second = json.loads(report("gitlab", [*check(SOURCE), IN_CELL]))
    assert len({first.pop("fingerprint"), second.pop("fingerprint")}) == 2
    assert first == {
        "description": "DL101 only rank 0 reaches this barrier: it waits for ever\n"
        "guard at model.py:2: if dist.get_rank() == 0",
        "check_name": "DL101",
        "severity": "major",
        "location": {
            "path": "model.py",
            "positions": {"begin": {"line": 3, "column": 2}, "end": {"line": 3, "column": 16}},
        },
    }
    assert second["location"]["positions"]["begin"] == {"line": 1, "column": 1}


def test_gitlab_fingerprints_are_unique_and_stay_when_lines_move() -> None:
    source = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n    dist.barrier()\n"
    moved = "\n\n" + source

    def prints(text: str) -> list[str]:
        found = check(text)
        return [item["fingerprint"] for item in json.loads(REPORTERS["gitlab"](found, {"model.py": text.splitlines()}))]

    assert len(set(prints(source))) == len(prints(source)) == 2
    assert prints(source) == prints(moved)


def test_junit_is_read_as_one_failure_a_finding() -> None:
    root = ET.fromstring(report("junit", [*check(SOURCE), replace(BROKEN, message="a <b> & \x00 \x1b c")]))
    assert (root.get("tests"), root.get("failures")) == ("2", "2")
    assert [(suite.get("name"), suite.get("tests")) for suite in root] == [("model.py", "1"), ("x.py", "1")]
    first, second = root.iter("testcase")
    assert (first.get("name"), first.get("file"), first.get("line")) == ("DL101 3:2", "model.py", "3")
    failure = second.find("failure")
    assert failure is not None
    assert failure.get("message") == "a <b> & \ufffd \ufffd c"


def test_junit_of_nothing_is_a_case_that_passed() -> None:
    root = ET.fromstring(report("junit", []))
    assert (root.get("tests"), root.get("failures")) == ("1", "0")
    assert len(list(root.iter("testcase"))) == 1
    assert not list(root.iter("failure"))


def test_sarif_whole() -> None:
    fix = Fix(True, (Edit(3, 2, 3, 16, "pass"),))
    (found,) = check(SOURCE)
    log = json.loads(report("sarif", [replace(found, fix=fix)]))
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    (rule,) = driver.pop("rules")
    assert driver == {"name": "distlint", "version": __version__, "semanticVersion": __version__}
    assert (rule["id"], rule["name"]) == ("DL101", "collective-under-rank-guard")
    assert rule["shortDescription"] == {"text": RULES["DL101"].summary()}
    assert rule["help"]["text"] == RULES["DL101"].page()
    assert (log["version"], run["columnKind"]) == ("2.1.0", "unicodeCodePoints")
    place = {"uri": "model.py"}
    region = {"startLine": 3, "startColumn": 2, "endLine": 3, "endColumn": 16}
    change = {"deletedRegion": region, "insertedContent": {"text": "pass"}}
    (result,) = run["results"]
    assert len(result.pop("partialFingerprints")["distlint/v1"]) == 16
    assert result == {
        "ruleId": "DL101",
        "ruleIndex": 0,
        "level": "error",
        "message": {"text": found.message},
        "locations": [{"physicalLocation": {"artifactLocation": place, "region": region}}],
        "relatedLocations": [
            {
                "id": 1,
                "message": {"text": "guard: if dist.get_rank() == 0"},
                "physicalLocation": {"artifactLocation": place, "region": {"startLine": 2}},
            }
        ],
        "fixes": [
            {
                "description": {"text": "safe"},
                "artifactChanges": [{"artifactLocation": place, "replacements": [change]}],
            }
        ],
    }


def test_sarif_of_a_notebook_says_the_cell_and_gives_no_lines_of_the_file() -> None:
    (result,) = json.loads(report("sarif", [IN_CELL]))["runs"][0]["results"]
    assert result["message"]["text"].startswith("cell 3, line 2, column 5: ")
    physical = result["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "a%20b/%C3%A9%2C1%3A2.ipynb"
    assert physical["region"] == {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1}
    assert "fixes" not in result
    assert "region" not in result["relatedLocations"][0]["physicalLocation"]


def test_paths_are_told_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, outside = tmp_path / "here" / "a b.py", tmp_path / "b é.py"
    inside.parent.mkdir()
    monkeypatch.chdir(inside.parent)
    results = json.loads(report("sarif", [replace(BROKEN, path=str(path)) for path in (inside, outside)]))
    shown = [
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for result in results["runs"][0]["results"]
    ]
    assert shown == ["a%20b.py", outside.as_uri()]
    assert "file=a b.py," in report("github", [replace(BROKEN, path=str(inside))])


TEXT = st.text(max_size=20)
FINDINGS = st.builds(
    Finding,
    code=st.sampled_from([*RULES, "DL000"]),
    name=st.just("some-name"),
    message=TEXT,
    path=st.text(min_size=1, max_size=10, alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    line=st.integers(1, 9),
    column=st.integers(1, 9),
    end_line=st.integers(9, 10),
    end_column=st.integers(9, 20),
    severity=st.sampled_from(Severity),
    fix=st.none() | st.builds(lambda safe, text: Fix(safe, (Edit(1, 1, 1, 2, text),)), st.booleans(), TEXT),
    trace=st.lists(st.builds(TraceStep, st.just("t.py"), st.integers(1, 9), TEXT, TEXT), max_size=2).map(tuple),
    cell=st.none() | st.integers(1, 9),
    condition=st.none() | st.just(REVIEW.condition),
)


@settings(deadline=None)
@given(st.lists(FINDINGS, max_size=4))
def test_every_finding_reaches_every_format(findings: list[Finding]) -> None:
    assert len(json.loads(report("json", findings))) == len(findings)
    for name in ("azure", "concise", "github", "json-lines", "pylint"):
        assert report(name, findings).count("\n") == len(findings)
    assert report("grouped", findings).count("\n  ") == len(findings)
    assert len(json.loads(report("rdjson", findings))["diagnostics"]) == len(findings)
    gitlab = json.loads(report("gitlab", findings))
    assert len({item["fingerprint"] for item in gitlab}) == len(findings)
    assert len(list(ET.fromstring(report("junit", findings)).iter("failure"))) == len(findings)
    (run,) = json.loads(report("sarif", findings))["runs"]
    for result, found in zip(run["results"], findings, strict=True):
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == found.code
    assert all(found.message in report_text([found], {}) for found in findings)


def test_formats_by_name() -> None:
    assert list(REPORTERS) == sorted(REPORTERS)
    assert {"concise", "grouped", "json-lines", "text"} < REPORTERS.keys()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("azure", "type=warning;"),
        ("github", "::notice "),
        ("gitlab", '"severity": "info"'),
        ("json", '"confidence": "review"'),
        ("json-lines", '"confidence": "review"'),
        ("junit", 'type="note"'),
        ("rdjson", '"severity": "INFO"'),
        ("sarif", '"level": "note"'),
        ("text", "[some-name, review]"),
    ],
)
def test_what_is_for_review_is_told_apart(name: str, part: str) -> None:
    assert part in report(name, [REVIEW])
    assert part not in report(name, [replace(REVIEW, condition=None)])


def test_concise() -> None:
    assert report("concise", [*check(SOURCE), IN_CELL]).splitlines() == [
        "model.py:3:2: DL101 only rank 0 reaches this barrier: it waits for ever",
        "a b/é,1:2.ipynb:cell 3:2:5: DL101 100% hangs: for ever, yes",
    ]


def test_grouped() -> None:
    (found,) = check(SOURCE)
    assert report("grouped", [found, replace(found, line=14), REVIEW]) == (
        "model.py:\n"
        "  3:2  DL101 only rank 0 reaches this barrier: it waits for ever\n"
        "  14:2 DL101 only rank 0 reaches this barrier: it waits for ever\n"
        "\n"
        "x.py:\n"
        "  1:2 DL202 m\n"
        "\n"
    )


def test_json_lines() -> None:
    lines = report("json-lines", [*check(SOURCE), IN_CELL]).splitlines()
    assert [json.loads(line) for line in lines] == json.loads(report("json", [*check(SOURCE), IN_CELL]))


def test_pylint() -> None:
    assert report("pylint", [*check(SOURCE), IN_CELL]).splitlines() == [
        "model.py:3: [DL101] only rank 0 reaches this barrier: it waits for ever",
        "a b/é,1:2.ipynb:1: [DL101] cell 3, line 2, column 5: 100% hangs: for ever, yes",
    ]


def test_azure_escapes_what_its_commands_would_swallow() -> None:
    assert report("azure", [replace(IN_CELL, path="a];b.ipynb", trace=())]) == (
        "##vso[task.logissue type=error;sourcepath=a%5D%3Bb.ipynb;linenumber=1;columnnumber=1;code=DL101;]"
        "cell 3, line 2, column 5: 100%AZP25 hangs:%0Afor ever, yes\n"
    )


def test_rdjson_counts_bytes() -> None:
    lines = {"x.py": ["é = 'é', old"]}
    fix = Fix(True, (Edit(1, 10, 1, 13, "new"),))
    found = Finding("DL101", "some-name", "m", "x.py", 1, 10, 1, 13, fix=fix)
    (shown,) = json.loads(REPORTERS["rdjson"]([found], lines))["diagnostics"]
    place = {"start": {"line": 1, "column": 12}, "end": {"line": 1, "column": 15}}
    assert shown == {
        "message": "m",
        "location": {"path": "x.py", "range": place},
        "severity": "ERROR",
        "code": {"value": "DL101"},
        "suggestions": [{"range": place, "text": "new"}],
    }
    two = replace(found, fix=Fix(True, fix.edits * 2))
    assert "suggestions" not in REPORTERS["rdjson"]([two], lines)
