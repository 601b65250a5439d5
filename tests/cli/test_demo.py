"""What the demo counts as right, deals out, and shows of the linter; the whole of it is in ``tests/acceptance``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.cli import main
from distmetrics.cli.demo import BAD_SCRIPT, judged, lint, shard_bounds


@pytest.mark.parametrize(
    ("ours", "truth", "right", "difference"),
    [
        (0.5 * (1 + 5e-7), 0.5, True, 2.5e-7),
        (0.5 * (1 + 2e-6), 0.5, False, 1e-6),
        ([[3, 1], [0, 1]], [[3, 1], [0, 2]], False, -1.0),
        ([[2, 2], [0, 2]], [[3, 1], [0, 2]], False, 0.0),  # the same number of samples, in the wrong cells
    ],
)
def test_what_counts_as_right(ours: Any, truth: Any, right: bool, difference: float) -> None:
    found = judged(ours, truth)
    assert (found["value"], found["equal"]) == (ours, right)
    assert found["difference"] == pytest.approx(difference)


@given(samples=st.integers(0, 10_000), world_size=st.integers(1, 16))
def test_shards_cover_everything_once(samples: int, world_size: int) -> None:
    bounds = shard_bounds(samples, world_size)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, samples, world_size + 1)
    assert bounds == sorted(bounds)


def test_the_linter_finds_the_four_mistakes_and_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted(finding["code"] for finding in lint(BAD_SCRIPT)) == ["DL001", "DL005", "DL101", "DL201"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["demo"]) == 2
    assert "pip install scikit-learn" in capsys.readouterr().err
