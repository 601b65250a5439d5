"""Every rule's examples are its tests; every rule has what the documentation needs."""

from __future__ import annotations

import re

import pytest

from distlint.model import Example, Rule
from distlint.rules import RULES
from tests.lint.helpers import check

BAD = [pytest.param(rule, each, id=f"{rule.code}-{n}") for rule in RULES.values() for n, each in enumerate(rule.bad)]
GOOD = [pytest.param(rule, each, id=f"{rule.code}-{n}") for rule in RULES.values() for n, each in enumerate(rule.good)]
EVERY = [pytest.param(rule, id=rule.code) for rule in RULES.values()]


def _applied(rule: Rule) -> tuple[str, ...]:
    """A rule is tried alone, but for the one that judges what the others have reported."""
    return () if rule.code == "DL900" else (rule.code,)


@pytest.mark.parametrize(("rule", "example"), BAD)
def test_bad_example_is_reported_exactly_at_its_marks(rule: Rule, example: Example) -> None:
    found = [each for each in check(example.source, *_applied(rule)) if each.code == rule.code]
    assert sorted(each.line for each in found) == sorted(example.marks)
    for each in found:
        assert example.marks[each.line] in each.message
        assert (each.code, each.name) == (rule.code, rule.name)


@pytest.mark.parametrize(("rule", "source"), GOOD)
def test_good_example_is_silent_for_every_rule(rule: Rule, source: str) -> None:
    assert check(source, *_applied(rule)) == []


@pytest.mark.parametrize("rule", EVERY)
def test_rule_is_documented(rule: Rule) -> None:
    assert re.fullmatch(r"DL\d{3}", rule.code)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    assert rule.group
    assert rule.summary().endswith((".", "!"))
    assert len(rule.page().splitlines()) > 10
    for topic in ("How to fix:", "Silent:", "When to ignore:"):
        assert topic in rule.page()
    assert rule.bad
    assert rule.good
    assert rule.tokens


def test_codes_and_names_are_unique_and_in_order() -> None:
    rules = list(RULES.values())
    assert [rule.code for rule in rules] == sorted({rule.code for rule in rules}) == list(RULES)
    assert len({rule.name for rule in rules}) == len(rules)


def test_a_wrong_mark_would_be_noticed() -> None:
    rule = RULES["DL101"]
    example = rule.bad[0]
    moved = Example(example.source, {line + 1: text for line, text in example.marks.items()})
    with pytest.raises(AssertionError):
        test_bad_example_is_reported_exactly_at_its_marks(rule, moved)
