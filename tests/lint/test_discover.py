"""Which files are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlint.discover import SKIPPED_FOLDERS, discover


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def names(root: Path, *paths: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in discover(paths or [root])]


def test_python_files_below_in_order(tmp_path: Path) -> None:
    make(tmp_path, "b.py", "a/z.py", "a/data.txt", "a/b/c.py", "readme.md")
    assert names(tmp_path) == ["b.py", "a/z.py", "a/b/c.py"]


@pytest.mark.parametrize("folder", [".git", ".venv", ".mypy_cache", *sorted(SKIPPED_FOLDERS)])
def test_folders_passed_over_unless_named(tmp_path: Path, folder: str) -> None:
    make(tmp_path, f"{folder}/x.py", "y.py")
    assert names(tmp_path) == ["y.py"]
    assert names(tmp_path, tmp_path / folder) == [f"{folder}/x.py"]


def test_named_file_is_checked_whatever_it_is_called(tmp_path: Path) -> None:
    make(tmp_path, "script", ".venv/x.py")
    assert names(tmp_path, tmp_path / "script", tmp_path / ".venv/x.py") == ["script", ".venv/x.py"]


def test_each_file_once(tmp_path: Path) -> None:
    make(tmp_path, "a/x.py")
    assert names(tmp_path, tmp_path / "a/x.py", tmp_path, tmp_path / "a") == ["a/x.py"]


def test_missing_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.py"):
        list(discover([tmp_path / "nothing.py"]))


def test_a_file_with_several_names_once(tmp_path: Path) -> None:
    make(tmp_path, "b/x.py", "c/y.py")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.py").symlink_to("../b/x.py")
    (tmp_path / "a/z.py").symlink_to("../b/x.py")
    assert names(tmp_path) == ["b/x.py", "c/y.py"]
    assert names(tmp_path, tmp_path / "a") == ["a/x.py"]
    assert names(tmp_path, tmp_path / "a/z.py", tmp_path) == ["a/z.py", "c/y.py"]


def test_links_to_nowhere(tmp_path: Path) -> None:
    make(tmp_path, "x.py")
    (tmp_path / "y.py").symlink_to("missing.py")
    assert names(tmp_path) == ["x.py"]
    with pytest.raises(FileNotFoundError, match=r"y\.py"):
        list(discover([tmp_path / "y.py"]))
