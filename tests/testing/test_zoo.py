"""The zoo: each mutant breaks one law, which is named and no other; right metrics break none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, seed, settings

from distmetrics.testing import check_metric, laws, sharded
from distmetrics.testing.law import Law
from tests.testing.zoo.base import Specimen, judged
from tests.testing.zoo.mutants import MUTANTS, SMALL
from tests.testing.zoo.right import RIGHT

# The verdicts of 20 seeds are those of benchmarks/kit_zoo.py.


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_the_broken_law_is_named_and_no_other(mutant: Specimen) -> None:
    """And the law, called with the smallest case, raises again."""
    report = judged(mutant, 0, examples=3)
    assert [violation.law for violation in report.violations] == [mutant.breaks], str(report)
    (violation,) = report.violations
    with pytest.raises(AssertionError, match=f"breaks the law {mutant.breaks} "):
        violation.law(mutant.make, violation.case, equality=mutant.judged.equality)


@pytest.mark.parametrize(("make", "batches", "law"), SMALL)
def test_a_fault_of_small_cases_is_found_by_default(make: Any, batches: Any, law: Law) -> None:
    found = check_metric(make, batches).violations
    assert law in [violation.law for violation in found]

    @seed(0)
    @settings(deadline=None, database=None, phases=[Phase.generate])
    @given(sharded(batches))
    def judge(case: Any) -> None:
        law(make, case)

    with pytest.raises(AssertionError, match=f"breaks the law {law} "):
        judge()


@pytest.mark.parametrize("metric", RIGHT, ids=str)
def test_no_false_alarm(metric: Specimen) -> None:
    report = judged(metric, 0, examples=3)
    assert report.ok, str(report)
    assert not set(metric.judged) - report.judged.keys() - report.skipped.keys()
    assert len(report.judged) >= 8


@pytest.mark.parametrize(
    "metric",
    [pytest.param(metric, marks=[pytest.mark.long] if place % 4 else []) for place, metric in enumerate(RIGHT)],
    ids=str,
)
def test_no_false_alarm_on_meshes(metric: Specimen) -> None:
    chosen = (laws.LAYOUTS | laws.NO_HANG).equal(metric.judged.equality)
    report = judged(replace(metric, judged=chosen), 0, examples=4)
    assert report.ok, str(report)
    assert "a function holds no state" in report.skipped.values() or laws.OWNER_ONLY in report.judged


def test_every_law_has_a_mutant_and_there_are_many_kinds() -> None:
    assert {mutant.breaks for mutant in MUTANTS} == set(laws.ALL)
    names = {each.name for each in (*MUTANTS, *RIGHT)}
    assert (len(MUTANTS), len(RIGHT)) == (32, 35)
    assert len(names) == 67
