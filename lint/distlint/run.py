"""Check many files, in several processes where that pays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distlint.analysis.project import NO_PROJECT, Project, Settings
from distlint.cache import Cache
from distlint.document import fix_document, lines_of
from distlint.fix import Fixed, Judge, is_applicable
from distlint.model import Finding, Rule
from distlint.project.passes import check_in_passes
from distlint.project.told import Told
from distlint.workers import workers

_WORTH_A_PROCESS = 64  # files: below, starting one costs more than it saves
NO_SETTINGS = Settings()


@dataclass
class Checked:
    """What a run found.

    Attributes:
        findings: by file in the order of the files, then by line.
        sources: the lines of the files with findings, by the place that findings name.
        paths: of the files that were checked.
        projects: what each of them knows of the others, by path.
        hidden: how many findings were left out that are for review.
    """

    findings: list[Finding] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    projects: Mapping[str, Project] = field(default_factory=dict)
    hidden: int = 0

    @property
    def files(self) -> int:
        """How many files were checked."""
        return len(self.paths)

    def replace(self, path: str, findings: list[Finding], source: bytes) -> None:
        """What a file is after a fix."""
        order = dict.fromkeys(found.path for found in self.findings)
        left = {each: [found for found in self.findings if found.path == each] for each in order} | {path: findings}
        self.findings = [found for each in left.values() for found in each]
        self.sources |= lines_of(source, path)

    def hide(self, is_shown: Judge) -> None:
        """Leave out what is not to be shown."""
        shown = list(filter(is_shown, self.findings))
        self.hidden += len(self.findings) - len(shown)
        self.findings = shown

    def add(self, path: str, findings: list[Finding], source: bytes) -> None:
        """Count a file and keep its lines if there is something to show."""
        self.paths.append(path)
        self.findings.extend(findings)
        if findings:
            self.sources |= lines_of(source, path)


def fix_findings(
    checked: Checked,
    read: Callable[[str], bytes],
    rules: Callable[[str], Sequence[Rule]],
    *,
    is_wanted: Judge,
    unsafe: bool,
) -> Iterator[tuple[str, bytes, Fixed]]:
    """Every file with something to fix: its path, what it was and what it would be.

    Args:
        checked: a run over the files.
        read: the bytes of a file.
        rules: those whose findings in a file are reported.
        is_wanted: which findings may be fixed.
        unsafe: also apply fixes that may change what right code does.
    """
    wanted = filter(is_wanted, checked.findings)
    for path in dict.fromkeys(found.path for found in wanted if is_applicable(found, unsafe=unsafe)):
        source, project = read(path), checked.projects.get(path, NO_PROJECT)
        done = fix_document(source, path, rules(path), unsafe=unsafe, is_wanted=is_wanted, project=project)
        yield path, source, done


def check_stdin(source: bytes, name: str, rules: Sequence[Rule], *, settings: Settings = NO_SETTINGS) -> Checked:
    """Check one source that is not, or not yet, what the file of that name holds."""
    found = check_in_passes([name], rules, settings, sources={name: source})
    checked = Checked(projects=found.projects)
    checked.add(name, found.findings[name], source)
    return checked


def check_files(
    files: Sequence[Path],
    rules: Sequence[Rule],
    *,
    jobs: int = 0,
    settings: Settings = NO_SETTINGS,
    cache: Cache | None = None,
    told: Told | None = None,
) -> Checked:
    """Check files; the result depends neither on the number of processes nor on the order of the files.

    Args:
        files: in the order of the report.
        rules: the rules to apply.
        jobs: processes; 0 for as many as pay off.
        settings: what the user has declared.
        cache: what is known from runs before; saving it is left to the caller.
        told: what files of settings say.
    """
    jobs = jobs or max(1, min(os.cpu_count() or 1, len(files) // _WORTH_A_PROCESS))
    paths = [str(path) for path in files]
    with workers(jobs) as do_all:
        found = check_in_passes(paths, rules, settings, do_all, cache=cache, told=told)
    checked = Checked(projects=found.projects)
    for path in paths:
        checked.add(path, found.findings[path], _read(path) if found.findings[path] else b"")
    return checked


def _read(path: str) -> bytes:
    """What there is to show of a file; that it cannot be read is a finding."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
