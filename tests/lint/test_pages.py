"""The pages in docs/rules are those of the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlint.cli import main
from distlint.explain import pages
from distlint.rules import RULES

FOLDER = Path(__file__).parents[2] / "docs" / "rules"
PAGES = pages(RULES.values())


@pytest.mark.parametrize("name", sorted(PAGES))
def test_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == PAGES[name], "run: distlint rules --pages docs/rules"


def test_no_page_is_of_a_rule_that_is_gone() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(PAGES)


def test_the_command_writes_them(tmp_path: Path) -> None:
    assert main(["rules", "--pages", str(tmp_path / "new" / "rules")]) == 0
    assert {path.name: path.read_text("utf-8") for path in (tmp_path / "new" / "rules").iterdir()} == PAGES


def test_the_table_links_every_page() -> None:
    for code, rule in RULES.items():
        assert f"| [{code}]({code}.md) | {rule.name}" in PAGES["README.md"]
