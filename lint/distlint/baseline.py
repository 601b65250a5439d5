"""Findings that are known already, told by what the code says and not by where it stands."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

from distlint.model import Finding


def content_hash(found: Finding, lines: Sequence[str]) -> str:
    """The same as long as code and statement are, wherever the statement moves, however it is indented."""
    first, last = found.statement if found.statement != (0, 0) else (found.line, found.end_line)
    statement = [line.strip() for line in lines[first - 1 : last]]
    return hashlib.sha256("\n".join([found.code, *statement]).encode()).hexdigest()[:16]


def fingerprints(findings: Iterable[Finding], lines: Sequence[str]) -> list[str]:
    """One for each finding of a file, in their order: the same statement found again gets a number."""
    seen: Counter[str] = Counter()
    made = []
    for found in findings:
        content = content_hash(found, lines)
        seen[content] += 1
        made.append(content if seen[content] == 1 else f"{content}-{seen[content]}")
    return made
