"""Known findings: what survives an edit of the file, and what is new or gone."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint.cli import main
from tests.lint.helpers import HEAD, RELAXED, found, write

ONE = "def f{n}(rank):\n    if rank == 0:\n        dist.{call}()\n"


def source(*calls):
    return HEAD + "".join(ONE.format(n=n, call=call) for n, call in enumerate(calls))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(write(tmp_path, src__a=source("barrier", "barrier")))
    assert main(["check", "src", "--baseline", "known.json", "--write-baseline"]) == 0
    return tmp_path


def check(*options):
    return main(["check", "src", "--baseline", "known.json", *options])


def test_known_findings_are_not_reported(folder, capsys):
    assert check() == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "2 findings known from known.json\n" in err
    assert err.endswith("0 findings in 1 file\n")


@RELAXED
@given(st.sampled_from(["", "# a comment\n\n", "x = 1\n"]), st.integers(0, 3), st.integers(0, 3))
def test_only_what_is_more_than_before_is_new(folder, capsys, before, depth, more):
    """Wherever statements move, however they are indented."""
    text = before + HEAD
    for number in range(2 + more):
        pad = "    " * depth
        body = "".join(f"{pad}{line}\n" for line in ONE.format(n=number, call="barrier").splitlines())
        text += "".join("    " * n + "if x:\n" for n in range(depth)) + body
    write(folder, src__a=text)
    assert len(found(capsys, "src", "--baseline", "known.json")) == more


def test_another_statement_or_file_is_new(folder, capsys):
    write(folder, src__a=source("barrier", "all_gather"), src__b=source("barrier"))
    assert check("--output-format", "json") == 1
    out, err = capsys.readouterr()
    shown = [(item["path"], item["line"]) for item in json.loads(out)]
    assert shown == [("src/a.py", 7), ("src/b.py", 4)]
    assert "1 finding of known.json gone" in err


def test_what_is_gone_is_told_where_it_was_looked_for(folder, capsys):
    (folder / "other").mkdir()
    assert main(["check", "other", "--baseline", "known.json"]) == 0
    assert "gone" not in capsys.readouterr().err
    write(folder, src__a=source("barrier"))
    assert check("--ignore", "DL101") == 0
    assert "gone" not in capsys.readouterr().err
    assert check() == 0
    said = "1 finding of known.json gone: --write-baseline forgets them"
    assert said in capsys.readouterr().err
    (folder / "src" / "a.py").unlink()
    assert check() == 0
    assert "2 findings of known.json gone" in capsys.readouterr().err


def test_paths_are_told_from_the_file(folder, monkeypatch):
    monkeypatch.chdir(folder / "src")
    assert main(["check", "a.py", "--baseline", "../known.json"]) == 0
    moved = folder.parent / f"{folder.name}-moved"
    shutil.move(folder, moved)
    monkeypatch.chdir(moved)
    assert check() == 0


def test_writing_keeps_what_the_run_could_not_have_met(folder):
    write(folder, src__b=source("barrier"))
    assert main(["check", "src/b.py", "--baseline", "known.json", "--write-baseline"]) == 0
    assert check() == 0
    assert check("--write-baseline", "--ignore", "DL101") == 0
    assert check() == 0
    (folder / "src" / "a.py").unlink()
    assert main(["check", "src/b.py", "--baseline", "known.json", "--write-baseline"]) == 0
    entries = json.loads((folder / "known.json").read_text())["findings"]
    assert [entry["path"] for entry in entries] == ["src/b.py"]


def test_the_file_is_the_same_for_the_same_findings(folder):
    first = (folder / "known.json").read_text()
    (entry,) = json.loads(first)["findings"]
    assert (entry["path"], entry["code"], entry["count"]) == ("src/a.py", "DL101", 2)
    assert check("--write-baseline") == 0
    assert (folder / "known.json").read_text() == first
    (folder / "known.json").write_text("x = 1\n")  # it is no baseline, and so is not replaced
    assert check("--write-baseline") == 2
    assert (folder / "known.json").read_text() == "x = 1\n"


WRONG = ["", "[]", "{}", '{"version": 2, "findings": []}', '{"version": 1, "findings": [{}]}']


@pytest.mark.parametrize("text", [*WRONG, None])
def test_no_baseline_exits_2_and_says_so(folder, text, capsys):
    if text is None:
        (folder / "known.json").unlink()
    else:
        (folder / "known.json").write_text(text)
    assert check() == 2
    err = capsys.readouterr().err
    assert "known.json" in err
    assert "--write-baseline makes" in err or "version 2" in err
