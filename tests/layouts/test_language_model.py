"""A toy language model, split in several ways over 4 processes, has the numbers of one process."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.parallel_lm import MESHES, alone, on_rank
from distmetrics.testing import run


@pytest.fixture(scope="module")
def per_mesh() -> list[Any]:
    return [*zip(*run(4, on_rank, MESHES[4], backend="gloo"), strict=True)]


@pytest.mark.parametrize("place", range(len(MESHES[4])), ids=[str(mesh) for mesh in MESHES[4]])
def test_the_numbers_of_one_process(per_mesh: list[Any], place: int) -> None:
    for result in per_mesh[place]:
        assert result["ours"] == pytest.approx(alone(), rel=1e-6)  # perplexity is kept in float32
        assert result["ours"]["tokens"] == alone()["tokens"]


def test_what_is_logged_without_a_layout(per_mesh: list[Any]) -> None:
    """All of these differ by more than rounding."""
    for results in per_mesh:
        assert abs(results[0]["naive"]["loss"] - alone()["loss"]) > 1e-3
