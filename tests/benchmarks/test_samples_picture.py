"""The picture of docs/samples.md is what the loaders deal out."""

from __future__ import annotations

from pathlib import Path

from benchmarks.samples_picture import by_accelerate, by_exact, by_sampler, picture

PAGE = Path(__file__).parents[2] / "docs" / "samples.md"


def test_it_is_up_to_date():
    assert PAGE.with_suffix(".svg").read_text("utf-8") == picture(), "run: python -m benchmarks.samples_picture"


def test_the_page_tells_its_numbers():
    for loader, counted in ((by_sampler, 598), (by_accelerate, 640), (by_exact, 597)):
        assert sum(len(batch) for rank in loader() for batch in rank) == counted
        assert f"counts {counted}" in PAGE.read_text("utf-8")
