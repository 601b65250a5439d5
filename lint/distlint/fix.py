"""Apply fixes: never a file that no longer parses, never a fix that raises a new finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from distlint.baseline import fingerprints
from distlint.facts import Facts
from distlint.finding import SYNTAX_ERROR, Finding, is_applicable
from distlint.source import Source
from distlint.suppress import UNUSED, ignore_edits
from distlint.text import Edit, Text

Check = Callable[[bytes], list[Finding]]
Judge = Callable[[Finding], bool]


@dataclass
class Fixed:
    """What became of a file.

    Attributes:
        source: the new bytes, the old ones where nothing was fixed.
        findings: what is left to report, in the new source.
        applied: what was fixed.
        undone: findings whose fix broke the file or raised another finding.
    """

    source: bytes
    findings: list[Finding]
    applied: list[Finding] = field(default_factory=list)
    undone: list[Finding] = field(default_factory=list)


def fix_source(
    source: bytes, check: Check, *, unsafe: bool = False, is_wanted: Judge = bool
) -> Fixed:
    """Fix a source until nothing changes.

    Args:
        source: of a Python file.
        check: its findings.
        unsafe: also apply fixes that may change what right code does.
        is_wanted: which findings may be fixed: all, where nothing is said.
    """

    def is_fixable(found: Finding) -> bool:
        return is_applicable(found, unsafe=unsafe) and is_wanted(found)

    done = Fixed(source, check(source))
    refused: set[str] = set()
    # It ends: every pass leaves fewer findings, or refuses another fix.
    while todo := _applicable(done, refused, is_fixable):
        if not _pass(done, todo, check, refused):
            break
    if refused:
        done.undone = [found for found, key in _keyed(done) if key in refused]
    return done


def _keyed(done: Fixed) -> Iterator[tuple[Finding, str]]:
    sources = {found.place: Text.decode(done.source).lines for found in done.findings[:1]}
    return zip(done.findings, fingerprints(done.findings, sources), strict=True)


def _applicable(done: Fixed, refused: set[str], is_fixable: Judge) -> dict[Finding, str]:
    if not any(map(is_fixable, done.findings)):
        return {}
    return {found: key for found, key in _keyed(done) if is_fixable(found) and key not in refused}


def _pass(done: Fixed, todo: dict[Finding, str], check: Check, refused: set[str]) -> bool:
    """Apply all fixes that do not overlap at once; where that goes wrong, the first one alone."""
    text = Text.decode(done.source)
    chosen = _without_overlap(text, todo)
    if _try(done, text, chosen, check):
        return True
    for found in chosen:
        if _try(done, text, [found], check):
            return True
        refused.add(todo[found])
    return len(chosen) < len(todo)


def _without_overlap(text: Text, findings: Iterable[Finding]) -> list[Finding]:
    """Return findings whose edits leave each other alone; two may ask for the same new line."""
    chosen: list[Finding] = []
    taken: set[Edit] = set()
    for found in findings:
        edits = set(found.fix.edits) if found.fix is not None else set()
        if not any(_overlap(text, edit, other) for edit in edits - taken for other in taken):
            chosen.append(found)
            taken |= edits
    return chosen


def _overlap(text: Text, one: Edit, other: Edit) -> bool:
    (start, end), (first, last) = text.span(one), text.span(other)
    return start == first or (start < last and first < end)


def _try(done: Fixed, text: Text, chosen: Sequence[Finding], check: Check) -> bool:
    """Apply fixes if what comes out is a file with fewer findings and no new one."""
    edits = [edit for found in chosen if found.fix is not None for edit in found.fix.edits]
    try:
        source = text.edited(edits).encode()
    except UnicodeEncodeError:
        return False  # the encoding of the file has no such character
    if source == done.source:
        return False
    findings = check(source)
    if not _is_better(done.findings, findings, chosen):
        return False
    done.source, done.findings = source, findings
    done.applied += chosen
    return True


def would_help(source: bytes, findings: Sequence[Finding], found: Finding, check: Check) -> bool:
    """Return whether the fix of one finding leaves a file without it and without a new one."""
    return _try(Fixed(source, list(findings)), Text.decode(source), [found], check)


def _is_better(
    before: Sequence[Finding], after: Sequence[Finding], fixed: Sequence[Finding]
) -> bool:
    if any(found.code == SYNTAX_ERROR for found in after):
        return False
    allowed = Counter(found.code for found in before)
    allowed.subtract(found.code for found in fixed)
    now = Counter(found.code for found in after)
    if all(found.code != UNUSED for found in fixed):
        del now[UNUSED]  # a comment may have nothing to ignore once its line is right
    return all(number <= allowed[code] for code, number in now.items())


def ignore_source(source: bytes, check: Check, path: str, is_wanted: Judge) -> Fixed:
    """Add a comment to the statement of each finding that is wanted, where that hides it."""
    done = Fixed(source, check(source))
    for found in [each for each in done.findings if is_wanted(each)]:
        if _place(found) not in map(_place, done.findings):
            done.applied.append(found)  # the comment of the finding before it hides this one, too
            continue
        text = Text.decode(done.source)
        changed = text.edited(ignore_edits(Source(text, path, Facts()), found)).encode()
        findings = check(changed)
        is_read = not any(each.code == SYNTAX_ERROR for each in findings)
        if len(findings) < len(done.findings) and is_read:
            done.source, done.findings = changed, findings
            done.applied.append(found)
        else:
            done.undone.append(found)
    return done


def _place(found: Finding) -> tuple[str, int, int]:
    return found.code, found.line, found.column
