"""The parts of the benchmark with torchmetrics' own tests that decide: the sample, what is read, compared and told.

And, between processes, that the metrics do sync through distmetrics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchmetrics import MeanMetric, SumMetric

from benchmarks.upstream_tests.patched import install, syncs
from benchmarks.upstream_tests.plugin import sample
from benchmarks.upstream_tests.results import Outcome, Pair, Run, markdown, part, read
from distmetrics import Communicator
from distmetrics.testing import run

_WER = "tests.unittests.text.test_wer"
_XML = f"""<testsuites><testsuite>
  <testcase classname="{_WER}.TestWER" name="a[True]"><property name="syncs" value="6"/></testcase>
  <testcase classname="{_WER}.TestWER" name="a[False]"><failure message="tm_result: 1,&#10;  ref: 2"/></testcase>
  <testcase classname="{_WER}" name="skip"><skipped message="{"x" * 1000}"/></testcase>
  <testcase classname="{_WER}" name="two"><error message="failed on teardown"/></testcase>
  <testcase classname="{_WER}" name="two"><failure message="AssertionError"/></testcase>
  <testcase classname="" name="tests.unittests.text.test_infolm">
    <error message="collection failure">import x&#10;E   ImportError: x&#10;E   ModuleNotFoundError: No x</error>
  </testcase>
</testsuite></testsuites>
"""


def test_what_pytest_wrote_is_read() -> None:
    found = read(_XML)
    assert found.tests == {
        f"{_WER}.TestWER::a[True]": Outcome("passed", "", 6),
        f"{_WER}.TestWER::a[False]": Outcome("failed", "tm_result: 1, ref: 2"),
        f"{_WER}::skip": Outcome("skipped", "x" * 239 + "…"),
        f"{_WER}::two": Outcome("error", "failed on teardown"),
    }
    assert found.uncollected == {"tests.unittests.text.test_infolm": "ModuleNotFoundError: No x"}
    assert found.counts == [1, 1, 1, 1]
    names = [f"tests.unittests.{module}::test" for module in ("bases.test_ddp", "bases.test_ddp2", "text.test_a.TestA")]
    whole = Run({name: Outcome("passed") for name in names}, found.uncollected)
    assert list(part(whole, "bases/test_ddp.py").tests) == names[:1]
    assert (list(part(whole, "text").tests), part(whole, "text").uncollected) == (names[2:], found.uncollected)
    ours = Run({name: Outcome("failed", "AssertionError: ours", 2) for name in names}, {})
    page = markdown([Pair("text", 9, whole, ours)], {"sample": "all cases"})
    assert "- text, theirs passed, ours failed: " in page
    assert "Says: `AssertionError: ours`." in page


def test_the_sample_is_of_each_function_and_the_same_for_whoever_asks() -> None:
    some = [f"a.py::test_a[{number}]" for number in range(20)]
    others = [f"b.py::test_b[{number}]" for number in range(3)] + ["b.py::test_c"]
    chosen = sample([*some, *others], 4, 0)
    assert len(chosen & set(some)) == 4
    assert chosen - set(some) == set(others)
    assert sample(reversed(some), 4, 0) == chosen & set(some)
    assert sample(some, 4, 1) != chosen & set(some)
    assert sample([*some, *others], 0, 0) == {*some, *others}


def _metrics(comm: Communicator, folder: str) -> dict[str, Any]:
    """Sync in every way that a metric of torchmetrics has; this process ends with its patched metrics."""
    tally = Path(folder) / str(comm.rank)
    tally.mkdir()
    install(tally)
    install(tally)  # once is enough
    mean = MeanMetric()
    mean.update(torch.arange(1.0 + 2 * comm.rank))
    found: dict[str, Any] = {"mean": mean.compute().item(), "local": mean.weight.item(), "compute": syncs(tally)}
    mean.sync()
    found["synced"] = mean.weight.item()
    mean.unsync()
    found |= {"unsynced": mean.weight.item(), "sync": syncs(tally)}
    step = SumMetric(dist_sync_on_step=True)
    found |= {"step": step(torch.tensor(1.0 + comm.rank)).item(), "forward": syncs(tally)}
    found["own"] = step.sum_value.item()
    alone = SumMetric(dist_sync_fn=lambda value, group: [value] * 3)
    alone.update(1.0)
    found |= {"given": alone.compute().item(), "last": syncs(tally)}
    return found


@pytest.mark.gloo
@pytest.mark.timeout(120)
def test_every_way_to_sync_goes_through_distmetrics(tmp_path: Path) -> None:
    for rank, found in enumerate(run(2, _metrics, str(tmp_path), backend="gloo")):
        assert (found["mean"], found["compute"]) == (0.75, 1)
        assert (found["synced"], found["sync"]) == (4.0, 2)
        assert found["local"] == found["unsynced"] == 1.0 + 2 * rank
        assert (found["step"], found["forward"], found["own"]) == (3.0, 3, 1.0 + rank)
        assert (found["given"], found["last"]) == (3.0, 3)  # a dist_sync_fn of the test's own is asked
