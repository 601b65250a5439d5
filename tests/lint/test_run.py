"""Many files, with and without processes; files that cannot be read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from distlint.config import Config
from distlint.pages import EXAMPLES
from distlint.rules import RULES
from distlint.run import check_files
from tests.lint.helpers import HANG, WAITS, found, write

NONE = Config()


def test_processes_change_nothing(tmp_path):
    shutil.copytree(EXAMPLES / "DL101", tmp_path / "a")
    write(tmp_path, pyproject_toml="", **{f"m{n}": HANG + WAITS for n in range(5)})
    files = sorted(map(str, tmp_path.rglob("*.py")))
    alone, together = (check_files(files, list(RULES), NONE, jobs=jobs) for jobs in (1, 2))
    assert alone.findings
    assert alone == together
    assert list(alone.facts) == files
    paths = [found.path for found in alone.findings]
    assert paths == sorted(paths)
    assert set(paths) == set(alone.sources)
    assert len(check_files(files[:3], ["DL201"], NONE).facts) == 3


def test_a_source_that_is_not_on_the_disk_counts(tmp_path):
    path = str(write(tmp_path, a="x = 1\n", setup_cfg="") / "a.py")
    checked = check_files([path], list(RULES), NONE, sources={path: WAITS.encode() + b"Trainer(devices=2)"})
    assert [found.code for found in checked.findings] == ["DL202"]
    assert checked.sources[path][0] == WAITS.splitlines()[0]


def test_odd_files_in_a_folder(tmp_path, capsys):
    write(tmp_path, empty=b"", null=b"x = 1\0\n", utf16="x = 1\n".encode("utf-16"))
    write(tmp_path, large=b"#" * (1 << 21), **{"folder.py__inside": HANG})
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "nowhere.py").symlink_to(tmp_path / "missing.py")
    (tmp_path / "itself.py").symlink_to(tmp_path / "itself.py")
    os.mkfifo(tmp_path / "pipe.py")
    shown = [(code, Path(path).name) for path, code in found(capsys, tmp_path)]
    assert sorted(shown) == [
        ("DL000", "large.py"),
        ("DL000", "null.py"),
        ("DL000", "utf16.py"),
        ("DL101", "inside.py"),
    ]


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = str(write(tmp_path, secret="x = 1\n") / "secret.py")

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    (found,) = check_files([path], list(RULES), NONE).findings
    assert (found.code, found.line) == ("DL000", 1)
    assert "Permission denied" in found.message


@pytest.mark.long
def test_a_very_long_file(tmp_path):
    line = "def f{}(rank):\n    if rank == 0:\n        pass\n"
    source = "import torch.distributed as dist\n" + "".join(line.format(n) for n in range(16_700))
    source += "def g(rank):\n    if rank == 0:\n        dist.barrier()\n"
    path = str(write(tmp_path, a=source) / "a.py")
    (found,) = check_files([path], ["DL101"], NONE).findings
    assert (found.code, found.line) == ("DL101", 50_104), found.message


def test_findings_are_the_same_however_a_path_is_spelled(tmp_path, monkeypatch):
    write(tmp_path, setup_cfg="", one__model=WAITS, one__train="T(devices=1).fit(x)")
    write(tmp_path, many__model=WAITS, many__train="T(devices=4).fit(x)")
    monkeypatch.chdir(tmp_path / "one")
    for spell in (os.path.relpath, str, lambda path: str(Path("..", path.relative_to(tmp_path)))):
        files = [spell(tmp_path / name / "model.py") for name in ("one", "many")]
        checked = check_files(files, list(RULES), NONE)
        assert [each.path for each in checked.findings] == files[1:]
        assert {each.path for each in checked.waiting} == {files[0]}
