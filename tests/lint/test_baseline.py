"""Known findings: what survives an edit of the file, and what is new or gone."""

from __future__ import annotations

import json
import shutil

import pytest

from distlint.cli import main
from tests.lint.helpers import HEAD, write

ONE = "def f{n}(rank):\n    if rank == 0:\n        dist.barrier()\n"
TWO = HEAD + ONE.format(n=0) + ONE.format(n=1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(write(tmp_path, src__a=TWO))
    assert check("--write-baseline") == 0
    return tmp_path


def check(*options, path="src"):
    return main(["check", path, "--baseline", "known.json", *options])


def test_what_is_gone_is_told_where_it_was_looked_for_and_is_kept_elsewhere(folder, capsys, monkeypatch):
    def said(*options, path="src"):
        capsys.readouterr()
        assert check(*options, path=path) == 0
        return capsys.readouterr().err

    assert said() == "2 findings known from known.json\n0 findings in 1 file\n"
    write(folder, src__b=TWO, other__c="")
    said("--write-baseline", path="src/b.py")
    said("--write-baseline", "--ignore", "DL101")
    assert "gone" not in said(path="other") + said()
    write(folder, src__a=HEAD + ONE.format(n=0))
    assert "gone" not in said("--ignore", "DL101")
    assert "1 finding of known.json gone: --write-baseline forgets them" in said()
    (folder / "src" / "a.py").unlink()
    assert "2 findings of known.json gone" in said()
    said("--write-baseline", path="src/b.py")
    known = json.loads((folder / "known.json").read_text())["findings"]
    assert {(each["path"], each["code"]) for each in known} == {("src/b.py", "DL101")}
    moved = folder.parent / f"{folder.name}-moved"
    shutil.move(folder, moved)
    monkeypatch.chdir(moved / "src")  # paths are told from the file
    assert main(["check", "b.py", "--baseline", "../known.json"]) == 0


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
