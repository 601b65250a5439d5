"""``# distlint: ignore[DL101] reason`` on a statement's first or last line; ``ignore-file``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from distlint.finding import Finding, Fix
from distlint.retired import RETIRED
from distlint.source import Source
from distlint.text import Edit, Text

_COMMENT = re.compile(
    r"#\s*distlint:\s*(?P<what>ignore-file|ignore)\b(?:\[(?P<codes>[^\]]*)\])?[^#]*"
)
UNUSED, NAME = "DL900", "unused-ignore"


@dataclass(frozen=True)
class Ignore:
    """One comment.

    Attributes:
        line: where it stands.
        column: its first column.
        end_column: the column after its reason.
        codes: what it ignores; None for everything.
        everywhere: whether it holds for the whole file.
    """

    line: int
    column: int
    end_column: int
    codes: tuple[str, ...] | None
    everywhere: bool

    def hides(self, finding: Finding) -> bool:
        """Whether the comment asks not to report a finding."""
        if self.codes is not None and finding.code not in self.codes:
            return False
        return self.everywhere or self.line in (finding.line, *finding.statement)


def find_ignores(source: Source) -> list[Ignore]:
    """Return the comments of a file."""
    if "distlint:" not in source.text.text:
        return []
    comments = _Comments()
    source.module.visit(comments)
    found: list[Ignore] = []
    for comment in comments.found:
        start = source.position(comment).start
        found += _in_comment(comment.value, start.line, start.column)
    return sorted(found, key=lambda each: (each.line, each.column))


class _Comments(cst.CSTVisitor):
    """Collects the comments of a module, which are no code and so in no list of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[cst.Comment] = []

    def visit_Comment(self, node: cst.Comment) -> None:  # noqa: N802 - LibCST's name for it
        """Keep a comment."""
        self.found.append(node)


def _in_comment(text: str, line: int, start: int) -> Iterator[Ignore]:
    for match in _COMMENT.finditer(text):
        given = match["codes"]
        codes = None
        if given is not None:
            codes = tuple(code.strip().upper() for code in given.split(",") if code.strip())
        end = start + len(text[: match.end()].rstrip()) + 1
        is_file = match["what"] == "ignore-file"
        yield Ignore(line, start + match.start() + 1, end, codes, is_file)


def apply_ignores(
    findings: Iterable[Finding], ignores: Iterable[Ignore]
) -> tuple[list[Finding], set[tuple[Ignore, str]]]:
    """What is still to be reported, and which comment hid which code."""
    kept: list[Finding] = []
    used: set[tuple[Ignore, str]] = set()
    for found in findings:
        hiding = {(each, found.code) for each in ignores if each.hides(found)}
        used |= hiding
        if not hiding:
            kept.append(found)
    return kept, used


def unused_ignores(
    source: Source,
    ignores: Collection[Ignore],
    used: Collection[tuple[Ignore, str]],
    *,
    applied: Collection[str],
    known: Collection[str],
) -> Iterator[Finding]:
    """Yield comments that hide nothing, of those for rules that were applied.

    Args:
        source: the file.
        ignores: its comments.
        used: which comment hid which code.
        applied: codes of the rules that have looked for something to hide.
        known: codes of all rules.
    """
    silent = [each for each in ignores if each.codes is not None and UNUSED in each.codes]
    for each in ignores:
        said = _complaint(each, {code for ignore, code in used if ignore == each}, applied, known)
        if said is None:
            continue
        message, codes = said
        place = (source.path, each.line, each.column, each.line, each.end_column)
        fix = Fix(True, (_without(source.text, each, codes),))
        line = (each.line, each.line)
        found = Finding(UNUSED, NAME, message, *place, "warning", fix, statement=line)
        if not any(ignore.hides(found) for ignore in silent):
            yield found


def _complaint(
    ignore: Ignore, used: Collection[str], applied: Collection[str], known: Collection[str]
) -> tuple[str, list[str]] | None:
    """Return what is wrong with a comment and which codes to take out of it, or None."""
    nothing = "remove this comment, it ignores nothing: "
    if ignore.codes is None:
        every = not used and set(applied).issuperset(known)
        return (nothing + "no rule reports anything here", []) if every else None
    if not ignore.codes:
        return nothing + "it names no code", []
    idle = [c for c in ignore.codes if c in applied and c != UNUSED and c not in used]
    gone = [code for code in ignore.codes if code in RETIRED]
    strange = [code for code in ignore.codes if code not in {*known, *RETIRED}]
    said = [f"{', '.join(idle)} is not reported here"] * bool(idle)
    said += [f"{', '.join(gone)} is retired"] * bool(gone)
    said += [f"no rule has the code {', '.join(strange)}"] * bool(strange)
    out = idle + gone + strange
    if set(ignore.codes) - {*out, UNUSED}:  # the comment hides something by another code
        nothing = f"remove {', '.join(out)} from this comment: "
    return (nothing + "; ".join(said), out) if said else None


def _without(text: Text, ignore: Ignore, codes: Collection[str]) -> Edit:
    """Take codes out of a comment, or the comment out of its line, or the line out of the file."""
    line = text.lines[ignore.line - 1]
    left = [code for code in ignore.codes or () if code not in codes]
    if left:
        at = line.index("[", ignore.column - 1) + 2
        return Edit(ignore.line, at, ignore.line, line.index("]", at - 1) + 1, ", ".join(left))
    before, after = line[: ignore.column - 1], line[ignore.end_column - 1 :].lstrip()
    if not before.strip() and not after:
        return Edit(ignore.line, 1, ignore.line + 1, 1, "")
    start = ignore.column if after else len(before.rstrip()) + 1
    return Edit(ignore.line, start, ignore.line, len(line) - len(after) + 1, "")


def ignore_edits(source: Source, finding: Finding) -> list[Edit]:
    """Return a comment that would hide a finding, at the end of its statement."""
    line = finding.statement[1] or finding.line
    text = source.text.lines[line - 1]
    for there in find_ignores(source):
        if there.line == line and there.codes and not there.everywhere:
            at = text.index("]", there.column - 1) + 1
            return [Edit(line, at, line, at, f", {finding.code}")]
    end = len(text.rstrip()) + 1
    return [Edit(line, end, line, len(text) + 1, f"  # distlint: ignore[{finding.code}]")]
