"""Error texts are a part of the interface: pinned by the page that explains them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.guard.texts import TEXTS

PAGE = (Path(__file__).parents[2] / "docs/errors.md").read_text()
SHOWN = dict(re.findall(r"^## (.+?)\n.*?^```text\n(.*?)\n```", PAGE, flags=re.MULTILINE | re.DOTALL))


def test_each_text_has_its_place_on_the_page_and_no_other_has() -> None:
    """A verdict that nobody explains is half an error."""
    assert SHOWN.keys() == TEXTS.keys()


@pytest.mark.parametrize("title", TEXTS)
def test_a_text_is_as_the_page_shows_it(title: str) -> None:
    """Word for word."""
    assert TEXTS[title]() == SHOWN[title]
