"""The findings of one file: a pure function of its text, its path, the rules and the facts."""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import libcst as cst

from distlint.facts import Facts
from distlint.finding import Finding, unreadable
from distlint.rules import RULES
from distlint.rules.base import Rule
from distlint.source import Source
from distlint.suppress import UNUSED, apply_ignores, find_ignores, unused_ignores
from distlint.syntax import TOO_DEEP, broken, error_of, is_too_deep
from distlint.text import LARGEST, Text

_FRAMES = 10_000
_NOWHERE = Facts()


def check_source(
    source: bytes,
    path: str,
    rules: Iterable[type[Rule]],
    facts: Facts = _NOWHERE,
    *,
    prefilter: bool = True,
) -> list[Finding]:
    """Return all findings in one file, in the order of lines.

    Args:
        source: the file's bytes.
        path: how findings name the file.
        rules: the rules to apply.
        facts: what is known of the project.
        prefilter: pass over rules whose tokens do not occur; findings are the same without.
    """
    applied = list(rules)
    if len(source) > LARGEST:
        size, most = len(source) >> 10, LARGEST >> 10
        said = f"a file of {size} KiB is not read, {most} are the most: exclude it"
        return [unreadable(path, 1, 1, said)]
    asked = [rule for rule in applied if not prefilter or rule.can_matter(source, facts)]
    try:
        text = Text.decode(source)
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        return [unreadable(path, line, 1, f"cannot decode this line as {error.encoding}")]
    except (SyntaxError, LookupError) as error:
        return [unreadable(path, 1, 1, str(error))]
    if not asked:
        wrong = error_of(text.text)
        return [] if wrong is None else [unreadable(path, *wrong)]
    if is_too_deep(text.text):
        return [unreadable(path, *TOO_DEEP)]
    with _without_collector(), _with_deep_trees():
        try:
            return _check(text, path, applied, asked, facts)
        except cst.ParserSyntaxError as error:
            return [unreadable(path, *(error_of(text.text) or broken(text.text, error)))]
        except RecursionError:
            return [unreadable(path, *TOO_DEEP)]


def _check(
    text: Text, path: str, applied: list[type[Rule]], asked: list[type[Rule]], facts: Facts
) -> list[Finding]:
    source = Source(text, path, facts)
    findings: list[Finding] = []
    for kind in asked:
        rule = kind(source)
        rule.check()
        findings += rule.findings
    return sorted(_heed_comments(source, findings, applied), key=_place)


def _heed_comments(
    source: Source, findings: list[Finding], applied: Collection[type[Rule]]
) -> Iterator[Finding]:
    """Yield what comments leave to report, and comments that hide nothing."""
    ignores = find_ignores(source)
    kept, used = apply_ignores(findings, ignores)
    yield from kept
    codes = [rule.code() for rule in applied]
    if UNUSED in codes:
        yield from unused_ignores(source, ignores, used, applied=codes, known=RULES)


def _place(found: Finding) -> tuple[int, int, str]:
    return found.line, found.column, found.code


@contextmanager
def _with_deep_trees() -> Iterator[None]:
    """Let LibCST go down a chain of a thousand operators: its visitors are functions of Python."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Look for no cycles within: trees are full of them, and stay to the end of a file."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
