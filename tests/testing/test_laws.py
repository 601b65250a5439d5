"""Laws as values: names, sets, reasons; and their page in the documentation.

``python -m tests.testing.test_laws > docs/kit/laws.md`` writes the page anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from distmetrics.testing import laws, relative

INTRODUCTION = """# The laws

S(P) is the value that each rank gets when a partition P deals the batches to ranks. A metric whose
number is the single process's, under any sharding, keeps these laws. `check_metric` judges all but
the eight that are marked opt-in; how to choose, combine and switch off laws is told
[among the recipes](recipes.md).

<!-- written from distmetrics/testing/laws.py by python -m tests.testing.test_laws -->
"""


def page() -> str:
    """Return the page of laws, from the laws themselves."""
    parts = [INTRODUCTION]
    for law in laws.ALL:
        mark = "" if law in laws.DEFAULT else " (opt-in)"
        text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", law.page).replace("``", "`")
        paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
        title = f"**{law.title[0].upper()}{law.title[1:]}.**"
        parts.append("\n\n".join([f"## {law.number}. `{law.name}`{mark}", title, *paragraphs]))
    return "\n".join(f"{part}\n" for part in parts).replace("\n\n\n", "\n\n")


def test_there_are_27_and_each_has_a_check_and_says_why_it_breaks() -> None:
    assert [law.number for law in laws.ALL] == list(range(1, 28))
    assert len({law.check for law in laws.ALL}) == len({law.name for law in laws.ALL}) == 27
    assert all("It breaks where" in law.page for law in laws.ALL)


def test_sets_of_laws_keep_reasons_and_the_equality() -> None:
    two = laws.NO_HANG | laws.SHIFT
    assert list(two) == [laws.NO_HANG, laws.SHIFT]
    assert list(two - laws.SHIFT) == [laws.NO_HANG]
    near = relative(0.5)
    chosen = laws.DEFAULT.equal(near).off(laws.RANK_ORDER, because="ordered")
    assert laws.RANK_ORDER not in chosen
    assert dict(chosen.off_because) == {laws.RANK_ORDER: "ordered"}
    again = chosen | laws.RANK_ORDER
    assert laws.RANK_ORDER in again
    assert not again.off_because
    assert (again - laws.NO_HANG).equality is near


def test_the_page_of_laws_is_up_to_date() -> None:
    written = Path(__file__).parents[2] / "docs" / "kit" / "laws.md"
    assert written.read_text() == page()
    assert page().count("\n## ") == 27


if __name__ == "__main__":
    print(page(), end="")
