"""Check many files, in several processes where that pays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol, TypeVar

from distlint.engine import Examined, examine
from distlint.facts.project import Project, Settings
from distlint.link import Linker
from distlint.model import Finding, Rule
from distlint.modules import module_key
from distlint.rules import RULES
from distlint.scan import Scanned, scan_file, scan_files, scan_source

NO_SETTINGS = Settings()
_MOST_ROUNDS = 12  # helpers of helpers of helpers, each in another file
_WORTH_A_PROCESS = 64  # files: below, starting one costs more than it saves
_GivenT = TypeVar("_GivenT")
_GotT = TypeVar("_GotT")


class _DoAll(Protocol):
    """``map``, wherever the work is done."""

    def __call__(self, function: Callable[[_GivenT], _GotT], given: Sequence[_GivenT], /) -> Iterable[_GotT]: ...


@dataclass
class Checked:
    """What a run found.

    Attributes:
        findings: by file in the order of the files, then by line.
        sources: the lines of the files with findings.
        files: how many files were checked.
    """

    findings: list[Finding] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)
    files: int = 0

    def add(self, path: str, findings: list[Finding], source: bytes) -> None:
        """Count a file and keep its lines if there is something to show."""
        self.files += 1
        self.findings.extend(findings)
        if findings:
            self.sources[path] = source.decode("utf-8", "replace").splitlines()


@dataclass(frozen=True)
class _Task:
    """One file to look into.

    Attributes:
        path: as findings name it.
        project: what it knows of the others.
        rules: codes of the rules to apply.
        source: its bytes, where they are not those of the file.
    """

    path: str
    project: Project
    rules: tuple[str, ...]
    source: bytes | None = None


def check_stdin(source: bytes, name: str, rules: Sequence[Rule], *, settings: Settings = NO_SETTINGS) -> Checked:
    """Check one source that is not, or not yet, what the file of that name holds."""
    checked = Checked()
    examined = _examine_all([name], rules, settings, _here, {name: source})
    checked.add(name, examined[name].findings, source)
    return checked


def check_files(
    files: Sequence[Path], rules: Sequence[Rule], *, jobs: int = 0, settings: Settings = NO_SETTINGS
) -> Checked:
    """Check files; the result depends neither on the number of processes nor on the order of the files.

    Args:
        files: in the order of the report.
        rules: the rules to apply.
        jobs: processes; 0 for as many as pay off.
        settings: what the user has declared.
    """
    jobs = jobs or max(1, min(os.cpu_count() or 1, len(files) // _WORTH_A_PROCESS))
    checked = Checked()
    paths = [str(path) for path in files]
    with _workers(jobs) as do_all:
        examined = _examine_all(paths, rules, settings, do_all, {})
    for path in paths:
        findings = examined[path].findings
        checked.add(path, findings, Path(path).read_bytes() if findings else b"")
    return checked


def _examine_all(
    paths: Sequence[str],
    rules: Sequence[Rule],
    settings: Settings,
    do_all: _DoAll,
    sources: Mapping[str, bytes],
) -> dict[str, Examined]:
    """Two passes: names of all files and what they import, then trees; some trees again for helpers in other files."""
    scan = scan_files(paths, lambda some: do_all(partial(_scan, sources), some))
    linker = Linker(scan.outlines, scan.paths, settings, scan.opt_outs)
    codes, wanted = tuple(rule.code for rule in rules), set(paths)
    views: dict[str, Project] = {}
    found: dict[str, Examined] = {}
    stale = list(scan.paths)
    for _ in range(_MOST_ROUNDS):
        views.update((key, linker.view(key)) for key in stale)
        tasks = [
            _Task(path, views[key], codes if path in wanted else (), sources.get(path))
            for key, path in ((key, scan.paths[key]) for key in stale)
        ]
        for key, examined in zip(stale, do_all(_examine, tasks), strict=True):
            found[key] = examined
            linker.set_functions(key, examined.functions)
        stale = [key for key in linker.affected() if linker.view(key) != views[key]]
        if not stale:
            break
    return {path: found[module_key(path)] for path in paths}


def _scan(sources: Mapping[str, bytes], path: str) -> Scanned:
    return scan_source(sources[path]) if path in sources else scan_file(path)


def _examine(task: _Task) -> Examined:
    rules = [RULES[code] for code in task.rules]
    try:
        source = Path(task.path).read_bytes() if task.source is None else task.source
        return examine(source, task.path, rules, project=task.project)
    except Exception as error:
        raise RuntimeError(f"while checking {task.path}") from error


def _here(function: Callable[[_GivenT], _GotT], given: Sequence[_GivenT]) -> Iterable[_GotT]:
    return map(function, given)


@contextmanager
def _workers(jobs: int) -> Iterator[_DoAll]:
    """A ``map`` over processes, or over nothing but this one."""
    if jobs == 1:
        yield _here
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:

        def do_all(function: Callable[[_GivenT], _GotT], given: Sequence[_GivenT]) -> Iterable[_GotT]:
            if len(given) <= jobs:
                return map(function, given)
            return pool.map(function, given, chunksize=max(1, min(16, len(given) // (4 * jobs))))

        yield do_all
