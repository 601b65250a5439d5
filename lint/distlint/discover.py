"""Which files to check."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from distlint.config import Config

EVERYTHING = Config()
PYTHON = (".py", ".ipynb")
SETTINGS = (".yaml", ".yml", ".toml", ".json", ".cfg", ".sh", ".bash", ".sbatch", ".slurm")
_SETTINGS_NAMES = ("Dockerfile", "Makefile", "Jenkinsfile")
_CI_FOLDERS = frozenset({".github", ".circleci"})
_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_LARGEST_SETTINGS = 1 << 18  # bytes
SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__",
        "build",
        "dist",
        "node_modules",
        "site-packages",
        "venv",
    }
)


def discover(
    paths: Iterable[Path], config: Config = EVERYTHING, *, force: bool = False
) -> Iterator[Path]:
    """Python files and notebooks below folders, in order of names, and every file that is named.

    Hidden folders (``.git``, ``.venv``, …), build folders and installed packages are passed over,
    unless they are named. A file that several links lead to is given once, by its own name if that
    is among them; links to nowhere are passed over.

    Args:
        paths: files and folders.
        config: what else is passed over.
        force: whether that holds for what is named, too.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    found: list[Path] = []
    named: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(str(path))
        if force and is_excluded(path, config):
            continue
        if path.is_dir():
            found += _below(path, _Excluded(config))
        elif not path.is_file():
            raise FileNotFoundError(f"{path}, which is no file and no folder")
        else:
            found.append(path)
            named.add(path)
    yield from _each_once(list(dict.fromkeys(found)), named)


def _each_once(files: list[Path], named: set[Path]) -> Iterator[Path]:
    """Files without further links to the same; what is named goes first, then what is no link."""
    real = {file: os.path.realpath(file) for file in files}
    kept: dict[str, Path] = {}
    for file in sorted(files, key=lambda file: (file not in named, file.is_symlink())):
        kept.setdefault(real[file], file)
    return (file for file in files if kept[real[file]] == file)


def root_of(folder: str) -> str | None:
    """Return the nearest folder that marks a project, the folder itself or one above it."""
    for each in (Path(folder), *Path(folder).parents):
        if any((each / mark).exists() for mark in _MARKS):
            return str(each)
    return None


def members(root: Path, config: Config = EVERYTHING) -> Iterator[Path]:
    """Yield the files of a project that facts may come from: its code, and small settings.

    Folders below that are projects of their own are passed over.
    """
    excluded = _Excluded(config)
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        if here != root and any(mark in files or mark in folders for mark in _MARKS):
            folders.clear()
            continue
        folders[:] = sorted(
            name
            for name in folders
            if not (name.startswith(".") and name not in _CI_FOLDERS)
            and name not in excluded.names
            and not excluded.hides(here / name)
        )
        for name in sorted(files):
            path = here / name
            is_settings = name.endswith(SETTINGS) or name.startswith(_SETTINGS_NAMES)
            if not (is_settings or name.endswith(".py")) or not path.is_file():
                continue
            if not is_settings or path.stat().st_size <= _LARGEST_SETTINGS:
                yield path


def is_excluded(path: Path, config: Config) -> bool:
    """Whether a path would be passed over for what it is, or for what the user has said."""
    excluded = _Excluded(config)
    return path.name in excluded.names or excluded.hides(path)


class _Excluded:
    """What is passed over below folders."""

    def __init__(self, config: Config) -> None:
        self.names = SKIPPED_FOLDERS if config.exclude is None else frozenset[str]()
        self._patterns = (*(config.exclude or ()), *config.extend_exclude)
        self._config = config

    def hides(self, path: Path) -> bool:
        """Whether a pattern of the user fits."""
        return bool(self._patterns) and self._config.matches(path, self._patterns)


def _below(folder: Path, excluded: _Excluded) -> Iterator[Path]:
    closed: list[Path] = []  # folders without rights: as a file that cannot be read, each is told
    for root, folders, files in os.walk(folder, onerror=lambda e: closed.append(Path(e.filename))):
        here = Path(root)
        folders[:] = sorted(
            name
            for name in folders
            if not (name.startswith(".") or name in excluded.names or excluded.hides(here / name))
        )
        for name in sorted(files):
            path = here / name
            if name.endswith(PYTHON) and not excluded.hides(path) and path.is_file():
                yield path  # links to nowhere, pipes and the like are no source
    yield from closed
