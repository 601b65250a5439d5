"""Every mutant of the zoo is caught, and the law that is named is the one that it breaks, and no other."""

from __future__ import annotations

import os

import pytest

from distmetrics.testing import laws
from tests.testing.zoo.base import Specimen
from tests.testing.zoo.sample_metrics import MUTANTS, judged

# The verdicts of 20 seeds are those of benchmarks/kit_zoo.py.
SEEDS = range(int(os.environ.get("DISTMETRICS_ZOO_SEEDS", "1")))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_the_broken_law_is_named_and_no_other(mutant: Specimen, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """And the program that is shown shows it again."""
    report = judged(mutant, seed, examples=3)
    assert [violation.law for violation in report.violations] == [mutant.breaks], str(report)
    assert not report.ok
    assert mutant.breaks is not None
    (violation,) = report.violations
    assert len(violation.snippet.splitlines()) <= 15
    if isinstance(mutant.make, type):  # which a program can import
        exec(compile(violation.snippet, "snippet", "exec"), {})
        assert f"breaks the law {mutant.breaks.name}" in capsys.readouterr().out


def test_every_law_has_a_mutant() -> None:
    assert {mutant.breaks for mutant in MUTANTS} == set(laws.ALL)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 24
    assert sum(isinstance(mutant.make, type) for mutant in MUTANTS) > 12
