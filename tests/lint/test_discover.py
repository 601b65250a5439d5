"""Which files are checked, and what belongs to a project."""

from __future__ import annotations

import os

import pytest

from distlint.config import Config
from distlint.discover import SKIPPED_FOLDERS, discover, members, root_of


def make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def names(root, *paths):
    return [str(path.relative_to(root)) for path in discover(paths or [root])]


def test_python_files_and_notebooks_below_in_order(tmp_path):
    make(tmp_path, "b.py", "a/z.py", "a/data.txt", "a/b/c.ipynb", "readme.md")
    assert names(tmp_path) == ["b.py", "a/z.py", "a/b/c.ipynb"]


@pytest.mark.parametrize("folder", [".git", ".venv", ".mypy_cache", *sorted(SKIPPED_FOLDERS)])
def test_folders_passed_over_unless_named(tmp_path, folder):
    make(tmp_path, f"{folder}/x.py", "y.py")
    assert names(tmp_path) == ["y.py"]
    assert names(tmp_path, tmp_path / folder) == [f"{folder}/x.py"]


def test_named_files_are_checked_whatever_they_are_called_and_once(tmp_path):
    make(tmp_path, "script", ".venv/x.py", "a/x.py")
    assert names(tmp_path, tmp_path / "script", tmp_path / ".venv/x.py") == ["script", ".venv/x.py"]
    assert names(tmp_path, tmp_path / "a/x.py", tmp_path, tmp_path / "a") == ["a/x.py"]
    with pytest.raises(FileNotFoundError, match=r"nothing\.py"):
        list(discover([tmp_path / "nothing.py"]))


def test_a_file_with_several_names_once(tmp_path):
    make(tmp_path, "b/x.py", "c/y.py")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.py").symlink_to("../b/x.py")
    (tmp_path / "a/z.py").symlink_to("../b/x.py")
    (tmp_path / "nowhere.py").symlink_to("missing.py")
    assert names(tmp_path) == ["b/x.py", "c/y.py"]
    assert names(tmp_path, tmp_path / "a") == ["a/x.py"]
    assert names(tmp_path, tmp_path / "a/z.py", tmp_path) == ["a/z.py", "c/y.py"]
    with pytest.raises(FileNotFoundError, match=r"nowhere\.py"):
        list(discover([tmp_path / "nowhere.py"]))


@pytest.mark.parametrize("mark", ["pyproject.toml", "setup.py", "setup.cfg", ".git/config"])
def test_the_project_is_the_nearest_folder_with_a_mark(tmp_path, mark):
    make(tmp_path, mark, "src/a/b.py", "other/setup.py", "other/c.py")
    assert root_of(str(tmp_path / "src" / "a")) == root_of(str(tmp_path)) == str(tmp_path)
    assert root_of(str(tmp_path / "other")) == str(tmp_path / "other")


def test_members_are_code_and_settings_but_no_other_project(tmp_path):
    kept = ["pyproject.toml", "a.py", "b.yml", "conf/c.yaml", "d.json", "run.sh", "job.sbatch"]
    kept += ["Dockerfile", "docker/Dockerfile.gpu", "Makefile", "x.slurm", ".gitlab-ci.yml"]
    kept += [".github/workflows/ci.yml", ".circleci/config.yml"]
    other = [
        "sub/setup.py",
        "sub/e.py",
        ".venv/f.py",
        "build/g.py",
        "h.txt",
        "i.ipynb",
        ".idea/j.xml",
    ]
    make(tmp_path, *kept, *other, "old/k.py", "lib/.git/config", "lib/l.py")
    (tmp_path / "large.json").write_text(" " * (1 << 19))
    found = [str(p.relative_to(tmp_path)) for p in members(tmp_path, Config(extend_exclude=("old",)))]
    assert sorted(found) == sorted(kept)


def test_what_is_no_file_is_refused_and_a_folder_without_rights_is_told(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.py")
    make(tmp_path, "a.py", "closed/b.py")
    with pytest.raises(FileNotFoundError, match=r"pipe\.py"):
        list(discover([tmp_path / "pipe.py"]))
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert names(tmp_path) == ["a.py", "closed"]
