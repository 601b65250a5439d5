"""``# distlint: ignore[DL101] reason`` on a statement's first or last line; ``ignore-file`` anywhere."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from distlint.model import Edit, Finding, Fix, Rule
from distlint.text import Text

_COMMENT = re.compile(r"#\s*distlint:\s*(?P<what>ignore-file|ignore)\b(?:\[(?P<codes>[^\]]*)\])?[^#]*")
UNUSED = "DL900"


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


def find_ignores(text: str) -> list[Ignore]:
    """The comments of a file that can be parsed."""
    if "distlint:" not in text:
        return []
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [found for token in tokens if token.type == tokenize.COMMENT for found in _in_comment(token)]


def _in_comment(token: tokenize.TokenInfo) -> Iterator[Ignore]:
    line, start = token.start
    for match in _COMMENT.finditer(token.string):
        given = match["codes"]
        codes = None if given is None else tuple(code.strip().upper() for code in given.split(",") if code.strip())
        end = start + len(token.string[: match.end()].rstrip()) + 1
        yield Ignore(line, start + match.start() + 1, end, codes, match["what"] == "ignore-file")


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
    text: Text,
    path: str,
    ignores: Collection[Ignore],
    used: Collection[tuple[Ignore, str]],
    *,
    rule: Rule,
    applied: Collection[str],
    known: Collection[str],
) -> Iterator[Finding]:
    """Comments that hide nothing, told for rules that were applied.

    Args:
        text: the file.
        path: how findings name it.
        ignores: its comments.
        used: which comment hid which code.
        rule: the rule to report as.
        applied: codes of the rules that have looked for something to hide.
        known: codes of all rules.
    """
    silent = [each for each in ignores if each.codes is not None and UNUSED in each.codes]
    for each in ignores:
        said = _complaint(each, {code for ignore, code in used if ignore == each}, applied, known)
        if said is None:
            continue
        message, codes = said
        place = (path, each.line, each.column, each.line, each.end_column)
        fix = Fix(True, (_without(text, each, codes),))
        found = Finding(rule.code, rule.name, message, *place, rule.severity, fix, statement=(each.line, each.line))
        if not any(ignore.hides(found) for ignore in silent):
            yield found


def _complaint(
    ignore: Ignore, used: Collection[str], applied: Collection[str], known: Collection[str]
) -> tuple[str, list[str]] | None:
    """What is wrong with a comment, and the codes to take out of it; None if nothing is known to be."""
    nothing = "this comment ignores nothing: "
    if ignore.codes is None:
        every = not used and set(applied).issuperset(known)
        return (nothing + "no rule reports anything here", []) if every else None
    if not ignore.codes:
        return nothing + "it names no code", []
    idle = [code for code in ignore.codes if code in applied and code != UNUSED and code not in used]
    strange = [code for code in ignore.codes if code not in known]
    said = [f"{', '.join(idle)} is not reported here"] * bool(idle)
    said += [f"no rule has the code {', '.join(strange)}"] * bool(strange)
    return (nothing + "; ".join(said), idle + strange) if said else None


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


def ignore_edits(text: Text, findings: Iterable[Finding], reason: str = "") -> list[Edit]:
    """Comments that would hide findings, each at the end of its statement."""
    wanted: dict[int, set[str]] = {}
    for found in findings:
        wanted.setdefault(found.statement[1] or found.line, set()).add(found.code)
    there = {each.line: each for each in find_ignores(text.text) if each.codes and not each.everywhere}
    return [_with(text, line, sorted(codes), there.get(line), reason) for line, codes in sorted(wanted.items())]


def _with(text: Text, line: int, codes: list[str], there: Ignore | None, reason: str) -> Edit:
    source = text.lines[line - 1]
    if there is not None and there.codes is not None:
        at = source.index("]", there.column - 1) + 1
        return Edit(line, at, line, at, "".join(f", {code}" for code in codes if code not in there.codes))
    end = len(source.rstrip()) + 1
    return Edit(line, end, line, len(source) + 1, f"  # distlint: ignore[{', '.join(codes)}] {reason}".rstrip())
