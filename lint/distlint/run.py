"""Check many files, in several processes where that pays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from distlint.document import check_document, fix_document, lines_of
from distlint.fix import Fixed, is_applicable
from distlint.model import Finding, Rule
from distlint.rules import RULES

_WORTH_A_PROCESS = 64  # files: below, starting one costs more than it saves


@dataclass
class Checked:
    """What a run found.

    Attributes:
        findings: by file in the order of the files, then by line.
        sources: the lines of the files with findings, by the place that findings name.
        paths: of the files that were checked.
    """

    findings: list[Finding] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)

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

    def add(self, path: str, findings: list[Finding], source: bytes) -> None:
        """Count a file and keep its lines if there is something to show."""
        self.paths.append(path)
        self.findings.extend(findings)
        if findings:
            self.sources |= lines_of(source, path)


def fix_findings(
    checked: Checked, read: Callable[[str], bytes], rules: Sequence[Rule], *, unsafe: bool
) -> Iterator[tuple[str, bytes, Fixed]]:
    """Every file with something to fix: its path, what it was and what it would be.

    Args:
        checked: a run over the files.
        read: the bytes of a file.
        rules: the rules that were applied.
        unsafe: also apply fixes that may change what right code does.
    """
    for path in dict.fromkeys(found.path for found in checked.findings if is_applicable(found, unsafe=unsafe)):
        source = read(path)
        yield path, source, fix_document(source, path, rules, unsafe=unsafe)


def check_stdin(source: bytes, name: str, rules: Sequence[Rule]) -> Checked:
    """Check one source that is not a file."""
    checked = Checked()
    checked.add(name, check_document(source, name, rules), source)
    return checked


def check_files(files: Sequence[Path], rules: Sequence[Rule], *, jobs: int = 0) -> Checked:
    """Check files; the result does not depend on the number of processes.

    Args:
        files: in the order of the report.
        rules: the rules to apply.
        jobs: processes; 0 for as many as pay off.
    """
    codes = [rule.code for rule in rules]
    jobs = jobs or max(1, min(os.cpu_count() or 1, len(files) // _WORTH_A_PROCESS))
    checked = Checked()
    if jobs == 1:
        results = map(partial(_check_file, codes), files)
        for path, (findings, source) in zip(files, results, strict=True):
            checked.add(str(path), findings, source)
        return checked
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        chunk = max(1, min(16, len(files) // (4 * jobs)))
        for path, (findings, source) in zip(
            files, pool.map(partial(_check_file, codes), files, chunksize=chunk), strict=True
        ):
            checked.add(str(path), findings, source)
    return checked


def _check_file(codes: Sequence[str], path: Path) -> tuple[list[Finding], bytes]:
    source = path.read_bytes()
    try:
        findings = check_document(source, str(path), [RULES[code] for code in codes])
    except Exception as error:
        raise RuntimeError(f"while checking {path}") from error
    return findings, source if findings else b""
