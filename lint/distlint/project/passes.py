"""Passes over files: names of all and what they import; what functions are to other files, some again; findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from distlint.analysis.project import Project, Settings
from distlint.cache import Cache
from distlint.document import examine_document
from distlint.engine import Examined, unreadable
from distlint.model import Finding, Rule
from distlint.modules import forget_files, module_key
from distlint.project.link import Linker
from distlint.project.scan import Scanned, scan_file, scan_files, scan_source
from distlint.project.told import Told
from distlint.rules import RULES
from distlint.workers import DoAll, here

_MOST_ROUNDS = 12  # helpers of helpers of helpers, each in another file


@dataclass(frozen=True)
class Found:
    """What the passes have found out.

    Attributes:
        findings: by path.
        projects: what each file knows of the others, by path.
    """

    findings: Mapping[str, list[Finding]]
    projects: Mapping[str, Project]


@dataclass(frozen=True)
class _Task:
    """One file to look into.

    Attributes:
        path: as findings name it.
        project: what it knows of the others.
        rules: codes of the rules to apply.
        is_sound: whether Python can parse it.
        source: its bytes, where they are not those of the file.
    """

    path: str
    project: Project
    rules: tuple[str, ...]
    is_sound: bool
    source: bytes | None = None


def check_in_passes(
    paths: Sequence[str],
    rules: Sequence[Rule],
    settings: Settings,
    do_all: DoAll = here,
    sources: Mapping[str, bytes] | None = None,
    cache: Cache | None = None,
    told: Told | None = None,
) -> Found:
    """Check files together.

    Args:
        paths: as findings name them.
        rules: the rules to apply.
        settings: what the user has declared.
        do_all: does the work, in whatever processes.
        sources: what files hold that are not, or not yet, what is on the disk, by path.
        cache: what is known from runs before.
        told: what files of other kinds say.
    """
    sources = sources or {}
    forget_files()
    scan = scan_files(paths, lambda some: _scan_all(some, do_all, sources, cache))
    linker = Linker(scan, settings, told or Told())
    views: dict[str, Project] = {}

    def examine(keys: Sequence[str], codes: tuple[str, ...]) -> Iterable[Examined]:
        files = ((key, scan.paths[key]) for key in keys)
        tasks = [_Task(path, views[key], codes, key in scan.sound, sources.get(path)) for key, path in files]
        return _examine_all(tasks, do_all, cache)

    stale = list(scan.paths)
    for _ in range(_MOST_ROUNDS):
        views.update((key, linker.view(key)) for key in stale)
        for key, examined in zip(stale, examine(stale, ()), strict=True):
            linker.set_functions(key, examined.functions)
            linker.set_wrapped(key, examined.wrapped)
        stale = [key for key in linker.affected() if linker.view(key) != views[key]]
        if not stale:
            break
    keys = [module_key(path) for path in paths]
    last = examine(keys, tuple(rule.code for rule in rules))
    findings = {path: examined.findings for path, examined in zip(paths, last, strict=True)}
    return Found(findings, {path: views[key] for path, key in zip(paths, keys, strict=True)})


def _scan_all(
    paths: Sequence[str], do_all: DoAll, sources: Mapping[str, bytes], cache: Cache | None
) -> Iterable[Scanned]:
    known = {path: cache.scanned(path) for path in paths} if cache is not None else {}
    missing = [path for path in paths if known.get(path) is None]
    done = dict(zip(missing, do_all(partial(_scan, sources), missing), strict=True))
    if cache is not None:
        for path, scanned in done.items():
            cache.keep_scanned(path, scanned)
    return [done[path] if path in done else known[path] or Scanned() for path in paths]


def _examine_all(tasks: Sequence[_Task], do_all: DoAll, cache: Cache | None) -> Iterable[Examined]:
    if cache is None:
        return do_all(_examine, tasks)
    keys = [cache.key(task.project, is_wanted=bool(task.rules)) for task in tasks]
    found = [cache.examined(task.path, key) for task, key in zip(tasks, keys, strict=True)]
    missing = [number for number, examined in enumerate(found) if examined is None]
    for number, examined in zip(missing, do_all(_examine, [tasks[number] for number in missing]), strict=True):
        found[number] = examined
        cache.keep_examined(tasks[number].path, keys[number], examined)
    return [examined for examined in found if examined is not None]


def _scan(sources: Mapping[str, bytes], path: str) -> Scanned:
    return scan_source(sources[path], path) if path in sources else scan_file(path)


def _examine(task: _Task) -> Examined:
    rules = [RULES[code] for code in task.rules]
    try:
        source = Path(task.path).read_bytes() if task.source is None else task.source
    except OSError as error:
        return Examined([unreadable(task.path, error)])
    is_last = bool(rules)
    try:
        return examine_document(
            source, task.path, rules, project=task.project, summarise=not is_last, is_sound=task.is_sound
        )
    except Exception as error:
        raise RuntimeError(f"while checking {task.path}") from error
