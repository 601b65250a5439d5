"""One line a finding, as compilers print them: for people, editors, grep and scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from distlint.model import Finding
from distlint.reporters.places import relative, spot


def report_concise(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as ``path:line:column: code message``."""
    shown = (f"{_on_one_line(each.place)}:{each.line}:{each.column}: {_said(each)}\n" for each in findings)
    return "".join(shown)


def report_grouped(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings in one block a file, or a cell of a notebook, in columns."""
    return "".join(line for _, group in groupby(findings, key=lambda each: each.place) for line in _block(list(group)))


def _block(findings: Sequence[Finding]) -> Iterator[str]:
    yield f"{_on_one_line(findings[0].place)}:\n"
    width = max(len(f"{each.line}:{each.column}") for each in findings)
    for each in findings:
        yield f"  {f'{each.line}:{each.column}':<{width}} {_said(each)}\n"
    yield "\n"


def report_pylint(findings: Sequence[Finding], _sources: Mapping[str, Sequence[str]]) -> str:
    """All findings as ``path:line: [code] message``, which flake8 and ruff call pylint's."""
    return "".join(map(_as_pylint, findings))


def _as_pylint(found: Finding) -> str:
    where = spot(found)
    message = " ".join(where.message.split())
    return f"{_on_one_line(relative(found.path))}:{where.line}: [{found.code}] {message}\n"


def _said(found: Finding) -> str:
    return f"{found.code} {' '.join(found.message.split())}"


def _on_one_line(path: str) -> str:
    """A path for formats of one line a finding: a line break in it is shown as one."""
    return path.replace("\r", "\\r").replace("\n", "\\n")
