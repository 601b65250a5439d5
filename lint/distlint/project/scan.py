"""The first pass: outlines of the files to check, and of those they import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from distlint.document import python_of
from distlint.modules import find_module, module_key
from distlint.project.outline import Outline, read_outline
from distlint.project.told import read_opt_outs
from distlint.syntax import index_source
from distlint.text import Text


@dataclass(frozen=True)
class Scanned:
    """The first look at a file.

    Attributes:
        outline: empty where it cannot be parsed.
        opt_outs: arguments that it gives as False.
        is_sound: whether Python can parse it.
    """

    outline: Outline = field(default_factory=Outline)
    opt_outs: frozenset[str] = frozenset()
    is_sound: bool = False


def scan_file(path: str) -> Scanned:
    """Look at one file; what cannot be read or parsed is reported when it is checked."""
    try:
        return scan_source(Path(path).read_bytes(), path)
    except OSError:
        return Scanned()


def scan_source(source: bytes, path: str) -> Scanned:
    """Look at what a file of that name holds."""
    source = python_of(source, path)
    opt_outs = read_opt_outs(source)
    try:
        index = index_source(Text.decode(source).text, path, module_key(path))
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError):
        return Scanned(opt_outs=opt_outs)
    return Scanned(read_outline(index), opt_outs, is_sound=True)


@dataclass
class Scan:
    """The files that are looked at together.

    Attributes:
        paths: by module key, how findings name the file.
        outlines: by module key.
        opt_outs: of all files.
        sound: those that Python can parse.
    """

    paths: dict[str, str] = field(default_factory=dict)
    outlines: dict[str, Outline] = field(default_factory=dict)
    opt_outs: frozenset[str] = frozenset()
    sound: set[str] = field(default_factory=set)


def scan_files(files: Iterable[str], scan_many: Callable[[list[str]], Iterable[Scanned]]) -> Scan:
    """Scan files, then what they import of their project, until nothing is new.

    Args:
        files: as findings name them.
        scan_many: ``scan_file`` for many, in processes or from a cache.
    """
    found = Scan()
    fresh = {module_key(path): path for path in files}
    while fresh:
        found.paths.update(fresh)
        for key, scanned in zip(fresh, scan_many(list(fresh.values())), strict=True):
            found.outlines[key] = scanned.outline
            found.opt_outs |= scanned.opt_outs
            found.sound |= {key} if scanned.is_sound else set()
        imported = dict.fromkeys(module for key in fresh for module in imported_by(key, found.outlines[key]))
        fresh = {key: _shown(f"{key}.py") for key in imported if key not in found.outlines}
    return found


def imported_by(key: str, outline: Outline) -> Iterator[str]:
    """Yield the modules of the project that a module imports."""
    for text in (*outline.targets, *outline.stars):
        module = find_module(key, text)
        if module is not None:
            yield module[0]


def _shown(path: str) -> str:
    """A path as short as the user would write it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
