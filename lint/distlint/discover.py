"""Which files to check."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

PYTHON = (".py", ".ipynb")
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


def discover(paths: Iterable[Path]) -> Iterator[Path]:
    """Python files and notebooks below folders, in order of names, and every file that is named, whatever it is called.

    Hidden folders (``.git``, ``.venv``, …), build folders and installed packages are passed over, unless they
    are named.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(str(path))
        for file in _below(path) if path.is_dir() else [path]:
            if file not in seen:
                seen.add(file)
                yield file


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not (name.startswith(".") or name in SKIPPED_FOLDERS))
        for name in sorted(files):
            if name.endswith(PYTHON):
                yield Path(root) / name
