"""Known findings: what survives an edit of the file, and what is new or gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from distlint.cli import main

HEAD = "import torch.distributed as dist\n"
GUARDED = "def f{n}(rank):\n    if rank == 0:\n        dist.{call}()\n"


def source(*calls: str) -> str:
    return HEAD + "".join(GUARDED.format(n=n, call=call) for n, call in enumerate(calls))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(source("barrier", "barrier"))
    assert main(["check", "src", "--baseline", "known.json", "--write-baseline"]) == 0
    return tmp_path


def check(*options: str) -> int:
    return main(["check", "src", "--baseline", "known.json", *options])


def test_known_findings_are_not_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check() == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "2 findings known from known.json\n" in err
    assert err.endswith("0 findings in 1 file\n")


def test_moved_and_indented_lines_stay_known(folder: Path) -> None:
    text = (folder / "src" / "a.py").read_text()
    body = "".join(f"    {line}\n" for line in text.removeprefix(HEAD).splitlines())
    (folder / "src" / "a.py").write_text(f"# a comment\n\n{HEAD}if True:\n{body}")
    assert check() == 0


def test_one_more_of_the_same_is_new(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "src" / "a.py").write_text(source("barrier", "barrier", "barrier"))
    assert check() == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("1 finding in 1 file")


def test_another_statement_or_file_is_new(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "src" / "a.py").write_text(source("barrier", "all_gather"))
    (folder / "src" / "b.py").write_text(source("barrier"))
    assert check("--output-format", "json") == 1
    out, err = capsys.readouterr()
    assert [(Path(item["path"]).name, item["line"]) for item in json.loads(out)] == [("a.py", 7), ("b.py", 4)]
    assert "1 finding of known.json gone" in err


def test_what_is_gone_is_told_where_it_was_looked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "other").mkdir()
    assert main(["check", "other", "--baseline", "known.json"]) == 0
    assert "gone" not in capsys.readouterr().err
    (folder / "src" / "a.py").write_text(source("barrier"))
    assert check("--ignore", "DL101") == 0
    assert "gone" not in capsys.readouterr().err
    assert check() == 0
    assert "1 finding of known.json gone: --write-baseline forgets them" in capsys.readouterr().err
    (folder / "src" / "a.py").unlink()
    assert check() == 0
    assert "2 findings of known.json gone" in capsys.readouterr().err


def test_paths_are_told_from_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "src")
    assert main(["check", "a.py", "--baseline", "../known.json"]) == 0
    moved = folder.parent / f"{folder.name}-moved"
    shutil.move(folder, moved)
    monkeypatch.chdir(moved)
    assert check() == 0


def test_writing_keeps_what_the_run_could_not_have_met(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "src" / "b.py").write_text(source("barrier"))
    assert main(["check", "src/b.py", "--baseline", "known.json", "--write-baseline"]) == 0
    assert check() == 0
    assert check("--write-baseline", "--ignore", "DL101") == 0
    assert check() == 0
    (folder / "src" / "a.py").unlink()
    assert main(["check", "src/b.py", "--baseline", "known.json", "--write-baseline"]) == 0
    assert [entry["path"] for entry in json.loads((folder / "known.json").read_text())["findings"]] == ["src/b.py"]


def test_what_is_no_baseline_is_written_anew(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "known.json").write_text("{}")
    assert check("--write-baseline") == 0
    assert check() == 0


def test_the_file_is_the_same_for_the_same_findings(folder: Path) -> None:
    first = (folder / "known.json").read_text()
    entries = json.loads(first)["findings"]
    assert [(entry["path"], entry["code"], entry["count"]) for entry in entries] == [("src/a.py", "DL101", 2)]
    assert check("--write-baseline") == 0
    assert (folder / "known.json").read_text() == first


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2, "findings": []}', '{"version": 1, "findings": [{}]}'])
def test_no_baseline_exits_2_and_says_so(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "known.json").write_text(text)
    assert check() == 2
    assert "known.json" in capsys.readouterr().err


def test_missing_baseline_exits_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "known.json").unlink()
    assert check() == 2
    assert "--write-baseline makes it" in capsys.readouterr().err
