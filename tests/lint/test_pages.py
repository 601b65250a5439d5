"""The pages in docs/rules are those of the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlint.cli import main
from distlint.pages import pages
from distlint.rules import RULES

FOLDER = Path(__file__).parents[2] / "docs" / "rules"
PAGES = pages(RULES.values())


def test_the_command_writes_them_and_links_them(tmp_path):
    assert main(["rules", "--pages", str(tmp_path / "new" / "rules")]) == 0
    written = {path.name: path.read_text("utf-8") for path in (tmp_path / "new").rglob("*.md")}
    assert written == PAGES
    for code, rule in RULES.items():
        assert f"| [{code}]({code}.md) | {rule.name}" in PAGES["README.md"]
        assert PAGES[f"{code}.md"].startswith(f"# {code} {rule.name}\n")


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_up_to_date(name):
    assert (FOLDER / name).read_text("utf-8") == PAGES[name], "distlint rules --pages docs/rules"


def test_no_page_is_of_a_rule_that_is_gone():
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(PAGES)
