"""Which files to check."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from distlint.config import Config

EVERYTHING = Config()
PYTHON = (".py", ".ipynb")
SETTINGS = (".yaml", ".yml", ".json", ".sh")
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


def discover(paths: Iterable[Path], config: Config = EVERYTHING, *, force: bool = False) -> Iterator[Path]:
    """Python files and notebooks below folders, in order of names, and every file that is named, whatever it is called.

    Hidden folders (``.git``, ``.venv``, …), build folders and installed packages are passed over, unless they
    are named. A file that several links lead to is given once, by its own name if that is among them; links to nowhere
    are passed over.

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
        else:
            found.append(path)
            named.add(path)
    yield from _each_once(list(dict.fromkeys(found)), named)


def _each_once(files: list[Path], named: set[Path]) -> Iterator[Path]:
    """Files without further links to the same; what the user named goes first, then what is no link."""
    real = {file: os.path.realpath(file) for file in files}
    kept: dict[str, Path] = {}
    for file in sorted(files, key=lambda file: (file not in named, file.is_symlink())):
        kept.setdefault(real[file], file)
    return (file for file in files if kept[real[file]] == file)


def discover_settings(paths: Iterable[Path], config: Config = EVERYTHING) -> Iterator[Path]:
    """Small YAML, JSON and shell files below folders: trainers may be set up, or given options, there."""
    excluded = _Excluded(config)
    for path in paths:
        for file in _below(path, excluded, SETTINGS) if path.is_dir() else ():
            if file.stat().st_size <= _LARGEST_SETTINGS:
                yield file


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


def _below(folder: Path, excluded: _Excluded, endings: tuple[str, ...] = PYTHON) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        here = Path(root)
        folders[:] = sorted(
            name
            for name in folders
            if not (name.startswith(".") or name in excluded.names or excluded.hides(here / name))
        )
        for name in sorted(files):
            path = here / name
            if name.endswith(endings) and not excluded.hides(path) and path.is_file():
                yield path  # links to nowhere, pipes and the like are no source
