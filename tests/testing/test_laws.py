"""Laws as values: names, sets, reasons; and their page in the documentation.

``python -m tests.testing.test_laws > docs/kit/laws.md`` writes the page anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from distmetrics.testing import laws, relative

INTRODUCTION = """# The laws

A law is a property that a metric must have if its value is to be that of one process, however the data is sharded.
A [test](../testing.md) checks all laws (`laws.DEFAULT`) but those that are opt-in. Each law is a constant: `no-hang`
is `laws.NO_HANG`.

| opt-in | laws | for |
|---|---|---|
| `laws.WORLD_SIZE` | 9 | values with the same bits on any number of ranks |
| `laws.PADDING_REMOVED` | 10 | an `update` with an argument `indices`, the positions of its samples in the data set |
| `laws.NUMERICS` | 19 to 21 | low precision, large counts, large numbers |
| `laws.LAYOUTS` | 25 to 27 | [meshes](../layouts.md) |

<!-- written from distmetrics/testing/laws.py by python -m tests.testing.test_laws -->
"""


def page() -> str:
    """Return the page of laws, from the laws themselves."""
    parts = [INTRODUCTION]
    for law in laws.ALL:
        mark = "" if law in laws.DEFAULT else " (opt-in)"
        text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", law.page).replace("``", "`")
        cause = " ".join(["Breaks where", *text.partition("It breaks where")[2].split()])
        title = f"**{law.title[0].upper()}{law.title[1:]}.**"
        parts.append("\n\n".join([f"## {law.number}. `{law.name}`{mark}", title, cause]))
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
