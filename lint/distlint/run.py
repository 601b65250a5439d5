"""The findings of many files, each with the facts of its project, in several processes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol, TypeVar

from distlint.cache import Cache
from distlint.config import Config
from distlint.discover import members, root_of
from distlint.facts import Facts, Project, Scan, scan
from distlint.finding import Finding, unreadable
from distlint.notebook import lines_of, python_of
from distlint.text import LARGEST

GivenT = TypeVar("GivenT")
GotT = TypeVar("GotT")
_WORTH_A_PROCESS = 64  # files: below, starting one costs more than it saves


@dataclass
class Checked:
    """What a run found.

    Attributes:
        findings: by file in the order of the files, then by line.
        waiting: those that there would be if several devices ran the project.
        sources: the lines of the files with findings, by the place that findings name.
        facts: what each file is told of its project, by path.
    """

    findings: list[Finding] = field(default_factory=list)
    waiting: list[Finding] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)

    def add(self, path: str, facts: Facts, findings: Sequence[Finding], source: bytes) -> None:
        """Take over the findings of a file, and its lines if there is something to show."""
        self.facts[path] = facts
        shown = [found for found in findings if not found.waits]
        self.findings += shown
        if facts.devices != "one":
            self.waiting += [found for found in findings if found.waits]
        if shown:
            self.sources |= lines_of(source, path)

    def replace(self, path: str, findings: list[Finding], source: bytes) -> None:
        """Take over what a file is after a fix."""
        order = dict.fromkeys(found.path for found in self.findings)
        left = {each: [f for f in self.findings if f.path == each] for each in order}
        left[path] = [found for found in findings if not found.waits]
        self.findings = [found for each in left.values() for found in each]
        self.sources |= lines_of(source, path)


def check_files(
    files: Sequence[str],
    codes: Sequence[str],
    config: Config,
    *,
    jobs: int = 0,
    cache: Cache | None = None,
    sources: Mapping[str, bytes] | None = None,
) -> Checked:
    """Check files; the result depends neither on the number of processes nor on their order.

    Args:
        files: in the order of the report.
        codes: of the rules to apply.
        config: what is passed over, and what the user has declared.
        jobs: processes; 0 for as many as pay off.
        cache: what is known from runs before; saving it is left to the caller.
        sources: what files hold that are not, or not yet, what is on the disk.
    """
    given = sources or {}
    jobs = jobs or max(1, min(os.cpu_count() or 1, len(files) // _WORTH_A_PROCESS))
    with workers(jobs) as do_all:
        projects = projects_of(files, config, do_all, cache, given)
        facts = {path: projects[path].of(path) for path in files}
        todo = [_Job(path, facts[path], tuple(codes), given.get(path)) for path in files]
        found = _check_all(todo, do_all, cache)
    checked = Checked()
    for path in files:
        source = given[path] if path in given else _read(path) if found[path] else b""
        checked.add(path, facts[path], found[path], source)
    return checked


def projects_of(
    files: Sequence[str],
    config: Config,
    do_all: DoAll,
    cache: Cache | None = None,
    sources: Mapping[str, bytes] | None = None,
) -> dict[str, Project]:
    """Return the project of each file: the nearest folder that marks one, with all its files."""
    given = sources or {}
    groups: dict[str, dict[str, str]] = {}  # root → absolute path → path as findings name it
    root_by_folder: dict[str, str] = {}
    for path in files:
        full = os.path.abspath(path)  # noqa: PTH100 - called for each file; Path is slow
        folder = os.path.dirname(full)  # noqa: PTH120
        if folder not in root_by_folder:
            root_by_folder[folder] = root_of(folder) or ""
        groups.setdefault(root_by_folder[folder], {})[full] = path
    for root, members_ in groups.items():
        for member in members(Path(root), config) if root else ():
            members_.setdefault(str(member), _shown(str(member)))
    paths = [path for group in groups.values() for path in group.values()]
    known = {p: cache.scan(p) for p in paths if p not in given} if cache is not None else {}
    missing = [path for path in paths if known.get(path) is None]
    jobs = [(path, given.get(path)) for path in missing]
    done = dict(zip(missing, do_all(_scan, jobs), strict=True))
    for path, found in done.items():
        if cache is not None and path not in given:
            cache.keep_scan(path, found)
    scans = {**{path: found for path, found in known.items() if found is not None}, **done}
    projects: dict[str, Project] = {}
    for group in groups.values():
        made = Project({path: scans[path] for path in group.values()}, config.settings)
        projects |= dict.fromkeys(group.values(), made)
    return projects


def _shown(full: str) -> str:
    """Return a path below the current folder from there, any other as it is."""
    here = os.getcwd() + os.sep  # noqa: PTH109
    return full.removeprefix(here)


def _scan(job: tuple[str, bytes | None]) -> Scan:
    """Return what a file says of its project; nothing, if it cannot be read."""
    path, source = job
    python = python_of(_read(path) if source is None else source, path)
    return scan(python.decode("utf-8", "replace"), path) if len(python) <= LARGEST else Scan()


@dataclass(frozen=True)
class _Job:
    """One file to check, with all that its findings depend on."""

    path: str
    facts: Facts
    codes: tuple[str, ...]
    source: bytes | None


def _check(job: _Job) -> list[Finding]:
    """Return the findings of a file; that it cannot be read is one."""
    # Slow to import, and not needed where all findings are known from the run before.
    from distlint.document import check_document
    from distlint.rules import RULES

    source = job.source
    try:
        source = Path(job.path).read_bytes() if source is None else source
        return check_document(source, job.path, [RULES[code] for code in job.codes], job.facts)
    except OSError as error:
        return [unreadable(job.path, 1, 1, error.strerror or str(error))]
    except Exception as error:
        raise RuntimeError(f"while checking {job.path}") from error


def _check_all(
    jobs: Sequence[_Job], do_all: DoAll, cache: Cache | None
) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for job in jobs if cache is not None else ():
        known = cache.findings(job.path, job.facts) if cache and job.source is None else None
        if known is not None:
            found[job.path] = known
    missing = [job for job in jobs if job.path not in found]
    for job, findings in zip(missing, do_all(_check, missing), strict=True):
        found[job.path] = findings
        if cache is not None and job.source is None:
            cache.keep_findings(job.path, job.facts, findings)
    return found


def _read(path: str) -> bytes:
    """Return what there is to show of a file; that it cannot be read is a finding."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


class DoAll(Protocol):
    """``map``, wherever the work is done."""

    def __call__(self, f: Callable[[GivenT], GotT], given: Sequence[GivenT], /) -> Iterable[GotT]:
        """Return the results in the order of what was given."""


@contextmanager
def workers(jobs: int) -> Iterator[DoAll]:
    """A ``map`` over processes, or over nothing but this one."""
    if jobs == 1:
        yield map
        return
    # Processes begin as copies of this one where that is safe: importing all again takes long.
    is_safe = sys.platform == "linux" and threading.active_count() == 1
    context = get_context("fork" if is_safe else "spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:

        def do_all(function: Callable[[GivenT], GotT], given: Sequence[GivenT]) -> Iterable[GotT]:
            if len(given) <= jobs:
                return map(function, given)
            chunk = max(1, min(16, len(given) // (4 * jobs)))
            return pool.map(function, given, chunksize=chunk)

        yield do_all
