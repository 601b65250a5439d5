"""pytest's plugin: tests that run as every rank, and what is shown of ranks that fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distmetrics.errors import PeerLostError
from distmetrics.testing import Outcome
from distmetrics.testing.plugin import failure_of  # loaded once: each run inside a test would load torch anew

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]

HEAD = """
import time
import pytest
import torch
import torch.distributed as dist
import distmetrics as dm
from distmetrics.testing import faults
distributed = pytest.mark.distributed
"""


@pytest.fixture
def runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Run a test file with the plugin."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(code: str, *options: str, subprocess: bool = False) -> pytest.RunResult:
        pytester.makepyfile(HEAD + code)
        given = ("-p", "pytest_distmetrics", "-p", "no:cacheprovider", "--strict-markers", *options)
        return pytester.runpytest_subprocess(*given) if subprocess else pytester.runpytest_inprocess(*given)

    return run


PASSING = """
@distributed(world_size=[1, 2])
def test_sizes(comm):
    assert comm.world_size in (1, 2)

@pytest.mark.parametrize("world", [3], indirect=True)
def test_a_size_for_functions(world):
    assert world.size == 3

@distributed(4)
class TestClass:
    @distributed(backend="threads")
    @pytest.mark.parametrize("step", [1, 2])
    def test_method(self, comm, step):
        assert comm.world_size == 4

@distributed
def test_skipped(comm):
    pytest.skip("not today")

@distributed
@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
def test_expected(comm):
    1 / 0

@distributed(faults=[faults.kill(1, 1)])
def test_the_survivor_is_told(comm):
    with pytest.raises(dm.PeerLostError):
        dm.barrier()

@distributed(faults=[faults.raises(rank=1, at="manifest", error=OSError("cable"))])
def test_the_other_is_told(comm):
    with pytest.raises(dm.PeerLostError, match="OSError: cable") if comm.rank == 0 else pytest.raises(OSError):
        dm.barrier()
    if comm.rank == 1:
        raise OSError("cable")
"""


def test_tests_run_as_every_rank(runs: Any) -> None:
    runs(PASSING).assert_outcomes(passed=7, skipped=1, xfailed=1)


FAILING = """
@distributed(world_size=2)
def test_two_ways(comm):
    if comm.rank:
        raise KeyError("one")
    raise IndexError("zero")

@distributed(world_size=2)
def test_one_leaves(comm):
    if comm.rank:
        pytest.skip("no GPU here")

@distributed(world_size=2)
def test_given_up(comm):
    pytest.fail("given up", pytrace=False)

@distributed(world_size=2)
def test_one_failure_of_two_lines(comm):
    if comm.rank:
        dm.all_gather(torch.ones(2))
    else:
        dm.all_gather(torch.ones(3))
"""


def check_failures(result: pytest.RunResult, backend: str) -> None:
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        [
            '>           raise KeyError("one")',
            f"^ rank 1 of 2, on {backend}",
            '>       raise IndexError("zero")',
            f"^ rank 0 of 2, on {backend}",
            "rank 1 left the test (Skipped: no GPU here), and other ranks did not",
            "*_ test_given_up _*",
            "*given up",
            f"^ ranks 0-1 of 2, on {backend}",
            "*MismatchError: ranks disagree on all_gather*",
            f"^ ranks 0-1 of 2, on {backend}",
            "FAILED *::test_two_ways*",
        ]
    )
    assert "distmetrics/comm" not in result.stdout.str(), "a user's failure is not shown through our own lines"


def test_equal_failures_are_shown_once_and_what_began_it_last() -> None:
    errors = [PeerLostError("rank 1 failed"), ValueError("no such file"), ValueError("no such file")]
    failed = [Outcome(rank, error=error) for rank, error in enumerate(errors)]
    labels = [label for *_, label in failure_of(failed, 3, "threads").chain]
    assert labels == ["^ rank 0 let down by what is shown below", "^ ranks 1-2 of 3, on threads"]


@pytest.mark.gloo
@pytest.mark.timeout(300)
def test_failures_of_processes_are_shown_as_well(runs: Any) -> None:
    check_failures(runs(FAILING, "--distmetrics-backend=gloo"), "gloo")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("@distributed(world_size=0)\ndef test_it(comm): ...", "*needs a world_size of 1 or more, got 0"),
        ("@distributed(backend='nccl')\ndef test_it(comm): ...", "*backend must be 'threads' or 'gloo', got 'nccl'"),
        ("@distributed(size=2)\ndef test_it(comm): ...", "*unknown arguments of @pytest.mark.distributed*"),
        (
            "from hypothesis import given, strategies as st\n@distributed(3)\n@given(st.none())\ndef test_it(x): ...",
            "*@given: each rank would draw examples of its own*",
        ),
        ("def test_it(comm): ...", "*asks for comm, which each rank has its own of*"),
        (
            "@distributed(faults=[faults.kill(0, 9)])\ndef test_it(comm): ...",
            "*kill rank 0 at collective 9: never*",
        ),
        (
            (
                "import threading\n@pytest.fixture\ndef lock(): return threading.Lock()\n"
                "@distributed(backend='gloo')\ndef test_it(comm, lock): ..."
            ),
            "*its argument lock can't be sent to one*",
        ),
    ],
)
def test_mistakes_are_told(runs: Any, code: str, text: str) -> None:
    result = runs(code)
    assert result.ret != 0
    result.stdout.fnmatch_lines([text])


@pytest.mark.timeout(300)
def test_xdist_shows_the_same_failures(runs: Any) -> None:
    check_failures(runs(FAILING, "-n", "1", subprocess=True), "threads")


def test_tests_without_the_marker_are_left_alone(runs: Any) -> None:
    result = runs("def test_bad():\n    assert [1] == [2]\n\ndef test_good(): ...\n")
    result.assert_outcomes(passed=1, failed=1)
    assert "on threads" not in result.stdout.str()


def test_the_marker_is_explained(runs: Any) -> None:
    runs("", "--markers").stdout.fnmatch_lines(["@pytest.mark.distributed(world_size=2*"])
