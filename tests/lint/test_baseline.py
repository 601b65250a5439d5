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


def test_what_is_gone_is_told_where_it_was_looked_for(folder, capsys):
    def said(*arguments):
        capsys.readouterr()
        assert main(["check", "--baseline", "known.json", *arguments]) == 0
        return capsys.readouterr().err

    assert said("src") == "2 findings known from known.json\n0 findings in 1 file\n"
    (folder / "other").mkdir()
    assert "gone" not in said("other")
    write(folder, src__a=source("barrier"))
    assert "gone" not in said("src", "--ignore", "DL101")
    assert "1 finding of known.json gone: --write-baseline forgets them" in said("src")
    (folder / "src" / "a.py").unlink()
    assert "2 findings of known.json gone" in said("src")


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
    assert check("--write-baseline", "--ignore", "DL101") == 0
    assert check() == 0
    (folder / "src" / "a.py").unlink()
    assert main(["check", "src/b.py", "--baseline", "known.json", "--write-baseline"]) == 0
    (entry,) = json.loads((folder / "known.json").read_text())["findings"]
    assert (entry["path"], entry["code"], entry["count"]) == ("src/b.py", "DL101", 1)


WRONG = ["", "[]", "{}", "x = 1\n", '{"version": 2, "findings": []}', '{"version": 1, "findings": [{}]}']


@pytest.mark.parametrize("text", [*WRONG, None])
def test_no_baseline_exits_2_says_so_and_is_not_replaced(folder, text, capsys):
    path = folder / "known.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert check() == 2
    err = capsys.readouterr().err
    assert "known.json" in err
    assert "--write-baseline makes" in err or "version 2" in err
    if text is not None:
        assert check("--write-baseline") == 2
        assert path.read_text() == text
