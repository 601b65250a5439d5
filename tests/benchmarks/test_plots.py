"""The pictures of docs/benchmarks.md are drawn from the results that are committed."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import plots
from benchmarks.common import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_they_are_up_to_date(tmp_path: Path) -> None:
    """Also byte for byte, where they were drawn by the same version of matplotlib."""
    plots.main(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        drawn, committed = path.read_text("utf-8"), (RESULTS / path.name).read_text("utf-8")
        assert texts(drawn) == texts(committed), f"{path.name}: run: python -m benchmarks.plots"
        if version(drawn) == version(committed):
            assert drawn == committed, f"{path.name}: run: python -m benchmarks.plots"


def texts(picture: str) -> list[str]:
    """Return the words and numbers of a picture."""
    return re.findall(r"<text[^>]*>([^<]*)", picture)


def version(picture: str) -> list[str]:
    return re.findall(r"Matplotlib v[\d.]+", picture)


def test_the_page_shows_each_beside_a_text() -> None:
    shown = re.findall(r"!\[([^\]]{80,})\]\(\.\./benchmarks/results/(\w+)\.svg\)", PAGE.read_text("utf-8"))
    assert [name for _, name in shown] == [*plots.PICTURES]
