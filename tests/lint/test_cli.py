"""The command line and its exit codes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from distlint import __version__
from distlint.cli import main
from distlint.model import Rule
from distlint.rules import RULES
from tests.lint.helpers import python

BAD = RULES["DL101"].bad[0].source
GOOD = RULES["DL101"].good[0]


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.py"
    path.write_text(BAD)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.py"
    path.write_text(GOOD)
    return path


def test_findings_exit_1(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(bad)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{bad}:6:22 DL101 [collective-under-rank-guard] only rank 0 reaches this all_gather")
    assert f"guard at {bad}:5: if self.trainer.is_global_zero" in out
    assert err == "1 finding in 1 file (1 fixable with --fix)\n"


def test_clean_exits_0(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(good)]) == 0
    assert capsys.readouterr().out == ""


def test_the_current_folder_is_checked_if_none_is_named(
    bad: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bad.parent)
    assert main(["check"]) == 1
    assert capsys.readouterr().out.startswith("bad.py:6:22 ")


def test_exit_zero(bad: Path) -> None:
    assert main(["check", "--exit-zero", str(bad)]) == 0


def test_syntax_error_is_a_finding_and_the_rest_goes_on(
    bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_broken.py").write_text("def f(:\n")
    (tmp_path / "b_bytes.py").write_bytes(b"\xff\xfe\xfa")
    assert main(["check", str(tmp_path), "--output-format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(item["code"], Path(item["path"]).name) for item in found] == [
        ("DL000", "a_broken.py"),
        ("DL000", "b_bytes.py"),
        ("DL101", "bad.py"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "no/such/path"],
        ["check", "--select", "DL999", "."],
        ["check", "--ignore", "X", "."],
        ["check", "-", "other.py"],
        ["explain", "DL101", "DL999"],
        ["check", "--unsafe-fixes", "."],
        ["check", "--write-baseline", "."],
        ["check", "--baseline", "none.json", "lint/distlint/__init__.py"],
        ["check", "-", "--add-ignores"],
        ["check", "--statistics", "--output-format", "sarif", "."],
        ["check", "--output-file", "no/such/folder/x", "lint/distlint/__init__.py"],
        ["check", ".", "--jobs", "-1"],
    ],
)
def test_misuse_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("distlint: ")
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [[], ["check", ".", "--output-format", "xml"], ["frobnicate"]])
def test_bad_usage_exits_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyError])
def test_internal_error_exits_2_and_names_the_file(
    bad: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(_self: Rule, _analysis: object) -> None:
        raise kind

    monkeypatch.setattr(type(RULES["DL101"]), "query", fail)
    assert main(["check", str(bad)]) == 2
    err = capsys.readouterr().err
    assert "internal error" in err
    assert str(bad) in err


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ([], ["DL001", "DL101"]),
        (["--select", "DL101"], ["DL101"]),
        (["--select", "dl0,DL2"], ["DL001"]),
        (["--select", "DL001", "--select", "DL101"], ["DL001", "DL101"]),
        (["--ignore", "DL1"], ["DL001"]),
        (["--select", "DL1", "--ignore", "DL101"], []),
    ],
)
def test_select_and_ignore(
    tmp_path: Path, options: list[str], codes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.py").write_text(BAD.replace("self.scores)", "self.scores.cuda())"))
    assert main(["check", str(tmp_path), "--review", "--output-format", "json", *options]) == (1 if codes else 0)
    assert sorted(item["code"] for item in json.loads(capsys.readouterr().out)) == codes


def test_ignored_syntax_error(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("def f(:\n")
    assert main(["check", str(tmp_path)]) == 1
    assert main(["check", str(tmp_path), "--ignore", "DL000"]) == 0


def test_statistics(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--statistics", str(bad)]) == 1
    assert capsys.readouterr().out == "     1  DL101  collective-under-rank-guard  (1 with --fix)\n"


@pytest.mark.parametrize(("options", "name"), [([], "-"), (["--stdin-filename", "src/m.py"], "src/m.py")])
def test_stdin(
    options: list[str], name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(BAD.encode())))
    assert main(["check", "-", *options]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{name}:6:22 DL101")
    assert "^^^" in out


@pytest.mark.parametrize("code", [*RULES, "dl101"])
def test_explain_prints_the_page_and_every_example(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code]) == 0
    out = capsys.readouterr().out
    rule = RULES[code.upper()]
    assert out.startswith(f"{rule.code} {rule.name}")
    assert rule.page() in out
    for source in [example.source for example in rule.bad] + list(rule.good):
        assert all(line.strip() in out for line in source.splitlines())
    assert f"# distlint: ignore[{rule.code}]" in out


def test_rules_lists_every_rule_on_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    head, *shown = capsys.readouterr().out.splitlines()
    assert head.split() == ["code", "name", "group", "fix", "finds"]
    assert [line.split()[:2] for line in shown] == [[rule.code, rule.name] for rule in RULES.values()]


def test_rules_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [item["code"] for item in shown] == list(RULES)
    assert set(shown[0]) == {"code", "name", "group", "severity", "fix", "summary"}
    fixes = {item["code"]: item["fix"] for item in shown}
    assert (fixes["DL900"], fixes["DL201"]) == ("safe", "no")


def test_explain_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "DL101", "DL201"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("DL101 ")
    assert "\n\nDL201 " in out
    assert main(["explain"]) == 0
    assert all(rule.page() in capsys_out for capsys_out in [capsys.readouterr().out] for rule in RULES.values())


def test_explain_a_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "dl000"]) == 0
    assert capsys.readouterr().out.startswith("DL000\n\nA file")


def test_explain_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "DL101", "--markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# DL101 collective-under-rank-guard\n\n*divergence, error")
    assert "**How to fix:** make" in out
    assert "            scores = self.all_gather(self.scores)  # <-- reported" in out
    assert "``" not in out.replace("```", "")
    assert out.count("```") == 2 * (1 + len(RULES["DL101"].bad) + len(RULES["DL101"].good))


def test_as_a_program(bad: Path) -> None:
    done = python("-m", "distlint", "check", str(bad))
    assert done.returncode == 1
    assert "DL101" in done.stdout
    version = python("-m", "distlint", "--version")
    assert version.stdout == f"distlint {__version__}\n"
