"""Each rule's folder of examples: whole programs with ``# expect: CODE part of the message``."""

from __future__ import annotations

import re

import pytest

from distlint.check import check_source
from distlint.facts import Facts, Project, scan
from distlint.pages import EXAMPLES
from distlint.rules import RULES

PROGRAMS = sorted(EXAMPLES.glob("*/*.py"))
EXPECT = re.compile(r"# expect: (DL\d+) ([^#\n]*)")


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_example_is_reported_as_it_says(path):
    text, name = path.read_text(), path.name
    facts = Project({name: scan(text, name)}, Facts()).of(name)
    every = check_source(text.encode(), name, RULES.values(), facts)
    assert every == check_source(text.encode(), name, RULES.values(), facts, prefilter=False)
    found = [each for each in every if not each.waits]
    listed = enumerate(text.splitlines(), 1)
    wanted = [(number, match[1], match[2].strip()) for number, line in listed for match in EXPECT.finditer(line)]
    assert [(each.line, each.code) for each in found] == [(line, code) for line, code, _ in wanted], found
    for each, (_, _, said) in zip(found, wanted, strict=True):
        assert said in each.message
        assert len(each.message) <= 120
    assert (path.parent.name in {each.code for each in found}) is name.startswith("bad_")


@pytest.mark.parametrize("code", sorted(RULES.keys() - {"DL900"}))
def test_a_rule_has_enough_examples(code):
    names = [path.name for path in (EXAMPLES / code).glob("*.py")]
    most = 15 if code in ("DL001", "DL005", "DL101", "DL201") else 0
    assert sum(name.startswith("bad_") for name in names) >= max(6, most)
    assert sum(name.startswith("good_") for name in names) >= max(10, most)
