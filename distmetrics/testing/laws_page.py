"""The page of laws, written from the laws themselves.

``python -m distmetrics.testing.laws_page docs/kit/laws.md`` writes it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from distmetrics.testing import laws

_HEAD = """# The laws

S(P) is the value that each rank gets when a partition P deals the batches to ranks. A metric whose
number is the single process's, under any sharding, keeps these laws. `check_metric` judges all but
the five that are marked opt-in; how to choose, combine and switch off laws is told
[among the recipes](recipes.md).

<!-- written from distmetrics/testing/laws.py by python -m distmetrics.testing.laws_page -->
"""


def render() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for law in laws.ALL:
        mark = "" if law in laws.DEFAULT else " (opt-in)"
        text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", law.page).replace("``", "`")
        paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
        title = f"**{law.title[0].upper()}{law.title[1:]}.**"
        parts.append("\n\n".join([f"## {law.number}. `{law.name}`{mark}", title, *paragraphs]))
    return "\n".join(f"{part}\n" for part in parts).replace("\n\n\n", "\n\n")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
