"""The kit is silent about metrics that keep the laws."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from distmetrics.testing import laws
from tests.testing.zoo.base import Specimen
from tests.testing.zoo.sample_metrics import RIGHT, judged

SEEDS = range(int(os.environ.get("DISTMETRICS_ZOO_SEEDS", "1")))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("metric", RIGHT, ids=str)
def test_no_false_alarm(metric: Specimen, seed: int) -> None:
    report = judged(metric, seed, examples=3)
    assert report.ok, str(report)
    unexplained = set(metric.judged) - report.judged.keys() - report.skipped.keys()
    assert not unexplained
    assert len(report.judged) >= 8


@pytest.mark.parametrize(
    "metric",
    [pytest.param(metric, marks=[pytest.mark.long] if place % 4 else []) for place, metric in enumerate(RIGHT)],
    ids=str,
)
def test_no_false_alarm_on_meshes(metric: Specimen) -> None:
    chosen = (laws.LAYOUTS | laws.NO_HANG).equal(metric.judged.equality)
    report = judged(replace(metric, judged=chosen), 0, examples=3)
    assert report.ok, str(report)
    is_function = "a function holds no state" in report.skipped.values()
    assert is_function or laws.OWNER_ONLY in report.judged


def test_there_are_many_kinds() -> None:
    assert len({metric.name for metric in RIGHT}) == len(RIGHT) >= 24
