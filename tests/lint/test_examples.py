"""Each rule's folder of examples: whole programs with ``# expect: CODE part of the message``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import distlint
from distlint.check import check_source
from distlint.facts import Facts, Project, scan
from distlint.rules import RULES

FOLDER = Path(distlint.__file__).parent / "examples"
PROGRAMS = sorted(FOLDER.glob("*/*.py"))
EXPECT = re.compile(r"# expect: (DL\d+) ([^#\n]*)")


def findings(path):
    text = path.read_text()
    name = path.name
    project = Project({name: scan(text, name)}, Facts())
    facts = project.of(name)
    found = check_source(text.encode(), name, RULES.values(), facts)
    assert found == check_source(text.encode(), name, RULES.values(), facts, prefilter=False)
    return [each for each in found if not each.waits]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_example_is_reported_as_it_says(path):
    wanted = [
        (number, match[1], match[2].strip())
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in EXPECT.finditer(line)
    ]
    found = findings(path)
    assert [(each.line, each.code) for each in found] == [(n, code) for n, code, _ in wanted], [
        (each.line, each.code, each.message) for each in found
    ]
    for each, (_, _, said) in zip(found, wanted, strict=True):
        assert said in each.message
        assert len(each.message) <= 120
    own = path.parent.name
    assert bool([each for each in found if each.code == own]) is path.name.startswith("bad_")


@pytest.mark.parametrize("code", sorted(RULES.keys() - {"DL900"}))
def test_a_rule_has_enough_examples(code):
    names = [path.name for path in (FOLDER / code).glob("*.py")]
    most = 15 if code in ("DL001", "DL005", "DL101", "DL201") else 0
    assert sum(name.startswith("bad_") for name in names) >= max(6, most)
    assert sum(name.startswith("good_") for name in names) >= max(10, most)
