"""What distlint reports of hangs, and what it left to the guard, the guard stops; and it lets pass what is right."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tests.guard.agreement.drivers  # noqa: F401  (enters them)
from tests.guard.agreement.runner import DRIVERS, Driver, Ended, examples, nursery

_LIBRARIES = ("accelerate", "lightning", "pytorch_lightning")

pytestmark = [
    pytest.mark.gloo,
    pytest.mark.timeout(120),
    pytest.mark.xdist_group("agreement"),  # one process that has imported Lightning is enough
    pytest.mark.skipif(not all(map(importlib.util.find_spec, _LIBRARIES)), reason=f"needs {', '.join(_LIBRARIES)}"),
]
Ends = Callable[..., list[Ended]]


@pytest.fixture(scope="module")
def ends() -> Iterator[Ends]:
    with nursery() as found:
        yield found


def _marks(driver: Driver) -> list[pytest.MarkDecorator]:
    long = [pytest.mark.long] if driver.long else []
    return long + ([pytest.mark.xfail(reason=driver.disagrees)] if driver.disagrees else [])


BAD = [pytest.param(one, id=one.name, marks=_marks(one)) for one in DRIVERS.values() if "-bad-" in one.example]


def test_every_example_is_driven() -> None:
    """Also one that is written tomorrow; docs/benchmarks.md says how many there are."""
    bad = sum("-bad-" in name for name in examples())
    page = " ".join((Path(__file__).parents[2] / "docs/benchmarks.md").read_text().split())
    assert f"each of the {bad} bad ones and of the {len(examples()) - bad} good ones" in page
    assert {driver.example for driver in DRIVERS.values()} == set(examples())


@pytest.mark.parametrize("driver", BAD)
def test_a_bad_example_is_stopped_on_every_rank(driver: Driver, ends: Ends) -> None:
    """By one of the guard's errors, which names the line, and not at the deadline."""
    found = ends([driver.name])
    for rank, ended in enumerate(found):
        assert ended.by_guard, f"rank {rank}: {ended}"
        assert "did not come to a collective within" not in ended.text
        assert f"{driver.example}.py:" in ended.text or driver.elsewhere, found


def test_good_examples_run_to_their_end(ends: Ends) -> None:
    """One after the other in one world.

    What the guard stops is the fault, and not what a driver makes of the example: a word or two are put right.
    """
    good = [name for name, driver in DRIVERS.items() if "-good-" in driver.example]
    mended = [name for name, driver in DRIVERS.items() if driver.mend]
    assert [(ended.error, ended.text) for ended in ends(good, mended)] == [("", "")] * 2
