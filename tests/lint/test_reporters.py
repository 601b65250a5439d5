"""What people and programs are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint.finding import Finding, Fix, Related
from distlint.report import REPORTERS, as_json, text
from distlint.rules import RULES
from distlint.text import Edit
from tests.lint.helpers import RELAXED, check

SOURCE = "import torch.distributed as dist\nif dist.get_rank() == 0:\n\tdist.barrier()\n"
LINES = {"model.py": SOURCE.splitlines()}
BROKEN = Finding("DL000", "syntax-error", "m", "x.py", 1, 3, 4, 2)
IN_CELL = Finding(
    "DL101",
    "collective-under-rank-guard",
    "100% hangs:\nfor ever, yes",
    "a b/é,1:2.ipynb",
    *(2, 5, 2, 9),
    trace=(Related("a b/é,1:2.ipynb", 1, "test", "only some pass", cell=3),),
    fix=Fix(False, (Edit(2, 5, 2, 9, "x", cell=3),)),
    cell=3,
)
HANGS = Finding(
    "DL101",
    "collective-under-rank-guard",
    "only rank 0 reaches it",
    "model.py",
    *(3, 2, 3, 16),
    trace=(Related("model.py", 2, "guard", "only some ranks pass here"),),
)


def report(name, findings):
    return REPORTERS[name](findings, LINES)


def test_the_finding_of_these_tests_is_one_of_the_linter():
    (found,) = check(SOURCE)
    assert replace(found, message=HANGS.message, fix=None) == HANGS


def test_text_shows_place_trace_and_source():
    assert text([HANGS], LINES) == (
        "model.py:3:2 DL101 [collective-under-rank-guard] only rank 0 reaches it\n"
        "  guard at model.py:2: only some ranks pass here\n"
        "  2 | if dist.get_rank() == 0:\n"
        "  3 | \tdist.barrier()\n"
        "    | \t^^^^^^^^^^^^^^\n"
        "\n"
    )
    assert "|" not in text([HANGS], {})
    assert text([], {}) == ""


@pytest.mark.parametrize(("safe", "how"), [(True, "--fix"), (False, "--fix --unsafe-fixes")])
def test_text_tells_how_to_fix(safe, how):
    fixed = replace(HANGS, fix=Fix(safe, (Edit(1, 1, 1, 1, "x"),)))
    assert text([fixed], LINES).endswith(f"^\n  {how} repairs it\n\n")


def test_text_in_colour_says_the_same():
    plain, coloured = (text([HANGS], LINES, colour=colour) for colour in (False, True))
    assert "\x1b[1;31mDL101\x1b[0m" in coloured
    for style in ("0", "1", "2", "36", "1;31"):
        coloured = coloured.replace(f"\x1b[{style}m", "")
    assert coloured == plain


def test_text_of_a_finding_over_several_lines_and_past_the_end():
    shown = text([BROKEN], {"x.py": ["ab(cd"]}).splitlines()
    assert shown[-3:] == ["  1 | ab(cd", "    |   ^^^", ""]
    assert "|" not in text([replace(BROKEN, line=9, end_line=9)], {"x.py": ["ab"]})


def test_json_has_exactly_the_documented_fields():
    (item,) = json.loads(as_json([HANGS], {}))
    place = {"path": "model.py", "line": 3, "column": 2, "end_line": 3, "end_column": 16}
    trace = [{"path": "model.py", "line": 2, "text": "guard: only some ranks pass here"}]
    assert item == {
        "code": "DL101",
        "name": "collective-under-rank-guard",
        "message": "only rank 0 reaches it",
        **place,
        "severity": "error",
        "fix": None,
        "trace": trace,
    }
    assert as_json([], {}) == "[]\n"


def test_json_of_a_fix_and_of_a_cell():
    fix = Fix(True, (Edit(1, 2, 1, 3, "x"),))
    found = Finding("DL001", "hard-coded-device", "m", "x.py", 1, 2, 1, 3, "warning", fix)
    first, second = json.loads(as_json([found, IN_CELL], {}))
    edit = {"line": 1, "column": 2, "end_line": 1, "end_column": 3, "text": "x"}
    assert first["fix"] == {"safe": True, "edits": [edit]}
    assert first["severity"] == "warning"
    assert second["cell"] == second["trace"][0]["cell"] == second["fix"]["edits"][0]["cell"] == 3


def test_concise():
    assert report("concise", [HANGS, IN_CELL]).splitlines() == [
        "model.py:3:2: DL101 only rank 0 reaches it",
        "a b/é,1:2.ipynb:cell 3:2:5: DL101 100% hangs: for ever, yes",
    ]


def test_github_escapes_what_its_commands_would_swallow():
    assert report("github", [HANGS, IN_CELL]) == (
        "::error file=model.py,line=3,endLine=3,col=2,endColumn=15,"
        "title=DL101 collective-under-rank-guard::only rank 0 reaches it"
        "%0Aguard at model.py:2: only some ranks pass here\n"
        "::error file=a b/é%2C1%3A2.ipynb,line=1,endLine=1,"
        "title=DL101 collective-under-rank-guard::cell 3, line 2, column 5: 100%25 hangs:"
        "%0Afor ever, yes%0Atest at a b/é,1:2.ipynb:cell 3:1: only some pass\n"
    )
    warning = "::warning file=x.py,line=1,endLine=4,title=DL000 syntax-error::m\n"
    assert report("github", [replace(BROKEN, severity="warning")]) == warning


def test_gitlab_fingerprints_are_unique_and_stay_when_lines_move():
    def prints(source):
        shown = REPORTERS["gitlab"](check(source), {"model.py": source.splitlines()})
        return [item["fingerprint"] for item in json.loads(shown)]

    twice = SOURCE + "\tdist.barrier()\n"
    assert len(set(prints(twice))) == len(prints(twice)) == 2
    assert prints(twice) == prints("\n\n" + twice)


def test_junit_is_read_as_one_failure_a_finding():
    broken = replace(BROKEN, message="a <b> & \x00 \x1b c")
    root = ET.fromstring(report("junit", [HANGS, broken]))
    assert (root.get("tests"), root.get("failures")) == ("2", "2")
    suites = [(suite.get("name"), suite.get("tests")) for suite in root]
    assert suites == [("model.py", "1"), ("x.py", "1")]
    first, second = root.iter("testcase")
    shown = (first.get("name"), first.get("file"), first.get("line"))
    assert shown == ("DL101 3:2", "model.py", "3")
    assert second.find("failure").get("message") == "a <b> & \ufffd \ufffd c"
    root = ET.fromstring(report("junit", []))
    assert (root.get("tests"), root.get("failures")) == ("1", "0")
    assert [len(list(root.iter(tag))) for tag in ("testcase", "failure")] == [1, 0]


def test_sarif_of_a_notebook_says_the_cell_and_gives_no_lines_of_the_file():
    (result,) = json.loads(report("sarif", [IN_CELL]))["runs"][0]["results"]
    assert result["message"]["text"].startswith("cell 3, line 2, column 5: ")
    physical = result["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "a%20b/%C3%A9%2C1%3A2.ipynb"
    assert set(physical["region"].values()) == {1}
    assert "fixes" not in result
    assert "region" not in result["relatedLocations"][0]["physicalLocation"]


def test_paths_are_told_from_the_current_folder(tmp_path, monkeypatch):
    inside, outside = tmp_path / "here" / "a b.py", tmp_path / "b é.py"
    inside.parent.mkdir()
    monkeypatch.chdir(inside.parent)
    findings = [replace(BROKEN, path=str(path)) for path in (inside, outside)]
    places = [
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for result in json.loads(report("sarif", findings))["runs"][0]["results"]
    ]
    assert places == ["a%20b.py", outside.as_uri()]
    assert "file=a b.py," in report("github", findings[:1])


TEXT = st.text(max_size=20)
PATHS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
EDITED = st.builds(lambda safe, new: Fix(safe, (Edit(1, 1, 1, 2, new),)), st.booleans(), TEXT)
FINDINGS = st.builds(
    Finding,
    code=st.sampled_from([*RULES, "DL000"]),
    name=st.just("some-name"),
    message=TEXT,
    path=st.text(min_size=1, max_size=10, alphabet=PATHS),
    line=st.integers(1, 9),
    column=st.integers(1, 9),
    end_line=st.integers(9, 10),
    end_column=st.integers(9, 20),
    severity=st.sampled_from(["error", "warning"]),
    fix=st.none() | EDITED,
    trace=st.lists(st.builds(Related, st.just("t.py"), st.integers(1, 9), TEXT, TEXT), max_size=2),
    cell=st.none() | st.integers(1, 9),
)


@RELAXED
@given(st.lists(FINDINGS, max_size=4))
def test_every_finding_reaches_every_format(findings):
    number = len(findings)
    assert len(json.loads(report("json", findings))) == number
    for name in ("concise", "github"):
        assert report(name, findings).count("\n") == number
    gitlab = json.loads(report("gitlab", findings))
    assert len({item["fingerprint"] for item in gitlab}) == number
    assert len(list(ET.fromstring(report("junit", findings)).iter("failure"))) == number
    (run,) = json.loads(report("sarif", findings))["runs"]
    for result, found in zip(run["results"], findings, strict=True):
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == found.code
    assert all(found.message in text([found], {}) for found in findings)
