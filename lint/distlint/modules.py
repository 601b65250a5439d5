"""Which file an import means: by the folders around the file that imports, as Python itself would look."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import PurePath

_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_TEST_FOLDERS = frozenset({"test", "tests"})
_TEST_FILE = re.compile(r"(?:test_.*|.*_test|conftest)\.(?:py|ipynb)")
_HIGHEST = 6  # folders above a package that are searched, where nothing marks the top of a project


def module_key(path: str) -> str:
    """What full names in a file begin with: its absolute path without the ending."""
    full = os.path.abspath(path)  # noqa: PTH100 - called for every file; Path is slow
    return full[:-3] if full.endswith(".py") else f"{full}."


def absolute_name(key: str, text: str) -> str:
    """A dotted text as full names are written, where it is relative to the module ``key``."""
    dots = len(text) - len(text.lstrip("."))
    if not dots:
        return text
    for _ in range(dots):
        key = os.path.dirname(key)  # noqa: PTH120
    return f"{key}.{text[dots:]}"


def find_module(key: str, text: str) -> tuple[str, str] | None:
    """The module that a dotted import in the module ``key`` leads to, and what is left of the text.

    ``pkg.base.Model`` leads to ``("/src/pkg/base", "Model")``. None for what is not found beside the file, in the
    folders above it up to the top of its project, or in a ``src`` of one of these: it is installed, or not there.
    """
    folder = os.path.dirname(key)  # noqa: PTH120
    dots = len(text) - len(text.lstrip("."))
    if dots:
        for _ in range(dots - 1):
            folder = os.path.dirname(folder)  # noqa: PTH120
        return _descend(folder, tuple(part for part in text[dots:].split(".") if part))
    parts = tuple(text.split("."))
    for root in _roots(folder):
        if parts[0] in _modules_in(root) and (found := _descend(root, parts)) is not None:
            return found
    return None


@cache
def _modules_in(folder: str) -> dict[str, bool]:
    """Names that can be imported from a folder: True for folders, False for files."""
    found: dict[str, bool] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    found.setdefault(entry.name[:-3], False)
                elif "." not in entry.name and entry.is_dir():
                    found[entry.name] = True
    except OSError:  # not readable: nothing to be found there
        return {}
    return found


def _descend(folder: str, parts: tuple[str, ...]) -> tuple[str, str] | None:
    for number, part in enumerate(parts):
        inside = _modules_in(folder).get(part)
        if inside is None:
            break
        if not inside:
            return f"{folder}{os.sep}{part}", ".".join(parts[number + 1 :])
        folder = f"{folder}{os.sep}{part}"
    else:
        number = len(parts)
    if "__init__" not in _modules_in(folder):
        return None
    return f"{folder}{os.sep}__init__", ".".join(parts[number:])


@cache
def _roots(folder: str) -> tuple[str, ...]:
    """Where absolute imports of a file in ``folder`` may start: beside it, then outwards to the top of its project."""
    roots: list[str] = []
    current = folder
    for _ in range(_HIGHEST):
        inside = _modules_in(current)
        if PurePath(current).name in _INSTALLED:
            break
        if "__init__" not in inside:  # a folder of a package is no place to import from
            roots.append(current)
        if inside.get("src"):
            roots.append(f"{current}{os.sep}src")
        above = os.path.dirname(current)  # noqa: PTH120
        if "__init__" not in inside and _is_top(current):
            break
        if above == current:
            break
        current = above
    return tuple(roots)


def _is_top(folder: str) -> bool:
    """Whether a folder is the top of a project."""
    return any(os.path.exists(f"{folder}{os.sep}{mark}") for mark in _MARKS)  # noqa: PTH110


def is_test(path: str) -> bool:
    """Whether a file is one of tests: by its name, or by a folder between it and the top of its project."""
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100
    return _TEST_FILE.fullmatch(name) is not None or _is_for_tests(folder)


@cache
def _is_for_tests(folder: str) -> bool:
    above, name = os.path.split(folder)
    if name in _TEST_FOLDERS:
        return True
    return above != folder and not _is_top(folder) and _is_for_tests(above)


def forget_files() -> None:
    """Look at the folders again: for programs that live on while files come and go."""
    _modules_in.cache_clear()
    _roots.cache_clear()
    _is_for_tests.cache_clear()
