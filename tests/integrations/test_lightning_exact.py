"""Evaluation inside the real Lightning: every sample counts once, in metrics and in logged numbers."""

from __future__ import annotations

from typing import Any

import pytest

from distmetrics import SingleCommunicator
from distmetrics.testing import run
from tests.integrations.exact_evaluation import everything, odd_ones

pytest.importorskip("lightning.pytorch")
pytestmark = [pytest.mark.gloo, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return everything(SingleCommunicator())


@pytest.mark.parametrize("world_size", [2, 3])
def test_numbers_are_those_of_one_process(alone: dict[str, Any], world_size: int) -> None:
    """Means, sums, extremes, metrics; few samples and many; in fit, validate and test."""
    for rank in run(world_size, everything, backend="gloo"):
        for name, result in rank.items():
            expected = dict(alone[name]["logged"])
            logged = dict(result["logged"])
            assert logged.pop("ranks") == world_size * expected.pop("ranks"), name
            # of the last step alone, which has other samples in one process
            steps = [key for key in expected if "_step" in key]
            for key in steps:
                del expected[key], logged[key]
            assert logged == pytest.approx(expected, rel=1e-5), name


def test_a_step_logs_the_mean_over_its_samples() -> None:
    """13 samples in batches of 2 on 2 ranks: the third round has two samples and one, and what fills up none."""
