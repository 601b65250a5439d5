"""pytest's plugin: tests that run as every rank, what is shown of ranks that fail, and the page of reports."""

from __future__ import annotations

from pathlib import Path

import pytest

import distmetrics.testing.plugin  # noqa: F401  (loaded once: each run inside a test would load torch anew)

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


class Runs:
    """Runs test files with the plugin."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def __call__(self, code: str, *options: str, subprocess: bool = False) -> pytest.RunResult:
        self.pytester.makepyfile(HEAD + code)
        given = ("-p", "pytest_distmetrics", "-p", "no:cacheprovider", "--strict-markers", *options)
        if subprocess:
            return self.pytester.runpytest_subprocess(*given, timeout=280)
        return self.pytester.runpytest_inprocess(*given)


@pytest.fixture
def runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return Runs(pytester)


PASSING = """
def one_more(x):
    return x + 1

@distributed(world_size=3)
def test_every_rank(comm, ranks, tmp_path):
    assert int(dm.all_reduce(torch.tensor(1))) == 3
    assert one_more(comm.rank) == comm.rank + 1
    assert comm.rank in ranks
    assert tmp_path.exists()
    total = torch.tensor(comm.rank)
    dist.all_reduce(total)
    assert int(total) == 3, "torch's own calls reach the world as well"

@distributed(world_size=[1, 2])
def test_sizes(comm):
    assert comm.world_size in (1, 2)

def test_functions(world, ranks):
    assert world.run(lambda comm: comm.rank) == [*ranks]
    assert [outcome.error for outcome in world.outcomes(lambda comm: comm.barrier())] == [None, None]

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


def test_tests_run_as_every_rank(runs: Runs) -> None:
    runs(PASSING).assert_outcomes(passed=9, skipped=1, xfailed=1)


FAILING = """
@distributed(world_size=3)
def test_some_ranks(comm):
    total = [int(dm.all_reduce(torch.tensor(comm.rank))), 5]
    assert total == [3, 4 if comm.rank else 5]

@distributed(world_size=3)
def test_let_down(comm):
    if comm.rank == 1:
        raise ValueError("no such file")
    dm.barrier()

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


def check_failures(result: pytest.RunResult, backend: str, passed: int = 0) -> None:
    result.assert_outcomes(failed=6, passed=passed)
    result.stdout.fnmatch_lines(
        [
            "*_ test_some_ranks _*",
            ">       assert total == [[]3, 4 if comm.rank else 5[]]",
            "E       *assert [[]3, 5] == [[]3, 4]",
            "E         At index 1 diff: 5 != 4",
            "test_*.py:*: AssertionError",
            f"^ ranks 1-2 of 3, on {backend}",
            "*_ test_let_down _*",
            "PeerLostError: rank 1 failed and will never answer",
            "* let down by what is shown below",
            '>           raise ValueError("no such file")',
            "test_*.py:*: ValueError",
            f"^ rank 1 of 3, on {backend}",
            "*_ test_two_ways _*",
            '>           raise KeyError("one")',
            f"^ rank 1 of 2, on {backend}",
            '>       raise IndexError("zero")',
            f"^ rank 0 of 2, on {backend}",
            "*_ test_one_leaves _*",
            "rank 1 left the test (Skipped: no GPU here), and other ranks did not",
            "*_ test_given_up _*",
            "*given up",
            f"^ ranks 0-1 of 2, on {backend}",
            "*_ test_one_failure_of_two_lines _*",
            "*MismatchError: ranks disagree on all_gather*",
            f"^ ranks 0-1 of 2, on {backend}",
            "FAILED *::test_some_ranks*",
            "FAILED *::test_let_down*",
        ]
    )
    assert "distmetrics/comm" not in result.stdout.str(), "a user's failure is not shown through our own lines"


@pytest.mark.gloo
@pytest.mark.timeout(300)
def test_failures_of_processes_are_shown_as_well(runs: Runs) -> None:
    check_failures(runs(FAILING, "--distmetrics-backend=gloo"), "gloo")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("@distributed(world_size=0)\ndef test_it(comm): ...", "*needs a world_size of 1 or more, got 0"),
        ("@distributed(backend='nccl')\ndef test_it(comm): ...", "*needs backend 'threads' or 'gloo', got 'nccl'"),
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
def test_mistakes_are_told(runs: Runs, code: str, text: str) -> None:
    result = runs(code)
    assert result.ret != 0
    result.stdout.fnmatch_lines([text])


HANGING = """
@distributed(world_size=2, timeout=1)
def test_hangs(comm):
    while comm.rank:
        time.sleep(0.01)
    dm.barrier()
"""


def test_a_hang_is_a_failure_with_every_rank_s_stack(runs: Runs) -> None:
    # In a process of its own: threads of other tests that parse source at the same time trip Python 3.11's parser.
    result = runs(HANGING, subprocess=True)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["PeerLostError: rank 1 was still busy after 1 s, the limit of this run*"])
    result.stdout.fnmatch_lines(["rank 1 was here*", '*test_*.py", line 1[012]*in test_hangs'])
    result.stdout.fnmatch_lines(["rank 0 was here*"])


def test_a_deadlock_is_told_at_once(runs: Runs) -> None:
    result = runs("@distributed(timeout=1000)\ndef test_it(comm):\n    comm.rank or dm.barrier()\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*DivergedError: rank 1 has returned, and others still wait for it"])


@pytest.mark.timeout(300)
def test_xdist_shows_the_same_failures(runs: Runs) -> None:
    check_failures(runs(FAILING, "-n", "1", subprocess=True), "threads")


def test_tests_without_the_marker_are_left_alone(runs: Runs) -> None:
    result = runs("def test_bad():\n    assert [1] == [2]\n\ndef test_good(): ...\n")
    result.assert_outcomes(passed=1, failed=1)
    assert "on threads" not in result.stdout.str()


def test_the_marker_is_explained(runs: Runs) -> None:
    runs("", "--markers").stdout.fnmatch_lines(["@pytest.mark.distributed(world_size=2*"])
