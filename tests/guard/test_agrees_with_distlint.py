"""The guard stops what distlint's rules about hangs report, and lets pass what they let pass: their own examples."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.guard.agreement.runner import DRIVERS, Driver, Ended, collect, examples, nursery

_LIBRARIES = ("accelerate", "lightning", "pytorch_lightning")

pytestmark = [
    pytest.mark.gloo,
    pytest.mark.timeout(120),
    pytest.mark.xdist_group("agreement"),  # one process that has imported Lightning is enough
    pytest.mark.skipif(not all(map(importlib.util.find_spec, _LIBRARIES)), reason=f"needs {', '.join(_LIBRARIES)}"),
]
collect()
Ends = Callable[..., list[Ended]]


@pytest.fixture(scope="module")
def ends() -> Iterator[Ends]:
    with nursery() as found:
        yield found


def _marks(driver: Driver) -> list[pytest.MarkDecorator]:
    long = [pytest.mark.long] if driver.long else []
    return long + ([pytest.mark.xfail(reason=driver.disagrees)] if driver.disagrees else [])


BAD = [pytest.param(one, id=one.name, marks=_marks(one)) for one in DRIVERS.values() if "-bad-" in one.example]
CODES = sorted({one.example.partition("-")[0] for one in DRIVERS.values()})


def test_every_example_is_driven() -> None:
    """Also one that is written tomorrow; the guard's page says how many there are."""
    bad = sum("-bad-" in name for name in examples())
    page = " ".join((Path(__file__).parents[2] / "docs/guard.md").read_text().split())
    assert f"each of the {bad} bad ones and of the {len(examples()) - bad} good ones" in page
    assert {driver.example for driver in DRIVERS.values()} == set(examples())


@pytest.mark.parametrize("driver", BAD)
def test_a_bad_example_is_stopped_on_every_rank(driver: Driver, ends: Ends) -> None:
    """By one of the guard's errors, which names the line; or by an error of the rank's own, where that is expected."""
    found = ends([driver.name])
    for rank, ended in enumerate(found):
        assert ended.by_guard or ended.error in driver.own, f"rank {rank}: {ended}"
    assert not any("did not come to a collective within" in ended.text for ended in found)  # at the deadline
    named = [f"{driver.example}.py:" in ended.text for ended in found if ended.by_guard]
    assert named
    assert all(named) or driver.elsewhere, found


@pytest.mark.parametrize("code", CODES)
def test_good_examples_run_to_their_end(code: str, ends: Ends) -> None:
    """All those of a rule, one after the other in one world.

    What the guard stops is the fault, and not what a driver makes of the example: a word or two are put right.
    """
    good = [name for name, driver in DRIVERS.items() if driver.example.startswith(f"{code}-good-")]
    mended = [name for name, driver in DRIVERS.items() if driver.mend and driver.example.startswith(code)]
    assert [(ended.error, ended.text) for ended in ends(good, mended)] == [("", "")] * 2
