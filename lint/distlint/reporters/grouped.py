"""For people: the findings of each file, or cell of a notebook, below its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from distlint.model import Finding
from distlint.reporters.places import on_one_line


def report_grouped(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings in one block a file, in columns."""
    return "".join(line for _, group in groupby(findings, key=lambda each: each.place) for line in _block(list(group)))


def _block(findings: Sequence[Finding]) -> Iterator[str]:
    yield f"{on_one_line(findings[0].place)}:\n"
    places = [f"{found.line}:{found.column}" for found in findings]
    width = max(map(len, places))
    for place, found in zip(places, findings, strict=True):
        yield f"  {place:<{width}} {found.code} {' '.join(found.message.split())}\n"
    yield "\n"
