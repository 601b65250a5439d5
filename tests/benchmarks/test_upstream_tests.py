"""The parts of the benchmark with torchmetrics' own tests that decide: the sample, what is read, compared and told.

And, between processes, that the metrics do sync through distmetrics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchmetrics import MeanMetric, SumMetric

from benchmarks.upstream_tests.__main__ import declared, options, shown
from benchmarks.upstream_tests.patched import install, syncs
from benchmarks.upstream_tests.plugin import sample
from benchmarks.upstream_tests.results import CAUSES, Outcome, Pair, Run, cause_of, markdown, part, read
from distmetrics import Communicator
from distmetrics.testing import run

_XML = """<?xml version="1.0"?>
<testsuites><testsuite>
  <testcase classname="tests.unittests.text.test_wer.TestWER" name="test_class[True]">
    <properties><property name="syncs" value="6"/></properties>
  </testcase>
  <testcase classname="tests.unittests.text.test_wer.TestWER" name="test_class[False]">
    <failure message="AssertionError: tm_result: 1,&#10;  ref_result: 2">trace</failure>
  </testcase>
  <testcase classname="tests.unittests.text.test_wer" name="test_skip"><skipped message="no weights"/></testcase>
  <testcase classname="tests.unittests.text.test_wer" name="test_two"><error message="failed on teardown"/></testcase>
  <testcase classname="tests.unittests.text.test_wer" name="test_two"><failure message="AssertionError"/></testcase>
  <testcase classname="" name="tests.unittests.text.test_infolm">
    <error message="collection failure">import x&#10;E   ImportError: x&#10;E   ModuleNotFoundError: No x</error>
  </testcase>
</testsuite></testsuites>
"""


def test_what_pytest_wrote_is_read() -> None:
    found = read(_XML)
    wer = "tests.unittests.text.test_wer"
    assert found.tests == {
        f"{wer}.TestWER::test_class[True]": Outcome("passed", "", 6),
        f"{wer}.TestWER::test_class[False]": Outcome("failed", "AssertionError: tm_result: 1, ref_result: 2"),
        f"{wer}::test_skip": Outcome("skipped", "no weights"),
        f"{wer}::test_two": Outcome("error", "failed on teardown"),
    }
    assert found.uncollected == {"tests.unittests.text.test_infolm": "ModuleNotFoundError: No x"}
    assert found.counts == [1, 1, 1, 1]
    said = read(_XML.replace("no weights", "x" * 1000)).tests["tests.unittests.text.test_wer::test_skip"].said
    assert len(said) == 240
    assert said.endswith("x…")


def test_a_family_has_the_tests_of_its_place() -> None:
    names = [f"tests.unittests.{module}::test" for module in ("bases.test_ddp", "bases.test_ddp2", "text.test_a.TestA")]
    run_ = Run({name: Outcome("passed") for name in names}, {"tests.unittests.text.test_b": "no x"})
    assert list(part(run_, "bases/test_ddp.py").tests) == names[:1]
    assert list(part(run_, "text").tests) == names[2:]
    assert part(run_, "text").uncollected == run_.uncollected
    assert not part(run_, "bases/test_ddp.py").uncollected


def test_the_sample_is_of_each_function_and_the_same_for_whoever_asks() -> None:
    some = [f"a.py::test_a[{number}]" for number in range(20)]
    others = [f"b.py::test_b[{number}]" for number in range(3)] + ["b.py::test_c"]
    chosen = sample([*some, *others], 4, 0)
    assert len(chosen & set(some)) == 4
    assert chosen - set(some) == set(others)
    assert sample(reversed(some), 4, 0) == chosen & set(some)
    assert sample(some, 4, 1) != chosen & set(some)
    assert sample([*some, *others], 0, 0) == {*some, *others}


def _pair(family: str, theirs: str, ours: str) -> Pair:
    """Make a family of one test a letter: p, f, e, s."""
    kinds = {"p": "passed", "f": "failed", "e": "error", "s": "skipped"}

    def made(letters: str, said: str, each: int) -> Run:
        tests = {
            f"tests.unittests.{family}::t{i}": Outcome(kinds[x], said if x in "fe" else "", each)
            for i, x in enumerate(letters)
            if x != " "
        }
        return Run(tests, {f"tests.unittests.{family}.test_x": "ModuleNotFoundError: x"})

    return Pair(family, 9, made(theirs, "AssertionError: theirs", 0), made(ours, "AssertionError: ours", 2))


def test_tests_that_end_otherwise_are_found() -> None:
    pair = _pair("text", "pppffse", "pf efse")
    assert pair.differ == [f"tests.unittests.text::t{number}" for number in (1, 2, 3)]
    assert pair.of(pair.differ[1]) == (Outcome("passed"), Outcome("error", "not run"))
    assert pair.alike == [f"tests.unittests.text::t{number}" for number in (4, 6)]


def test_the_page_has_a_line_a_family_and_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [_pair("text", "ppf", "pff"), _pair("shape", "pe", "pp")]
    page = markdown(pairs, {"sample": "all cases"})
    assert "| text | 9 | 3 | 2 | 1 | 0 | 0 | 1 | 2 | 0 | 0 |" in page
    assert "| shape | 9 | 2 | 1 | 0 | 1 | 0 | 2 | 0 | 0 | 0 |" in page
    assert "| all | 18 | 5 | 3 | 1 | 1 | 0 | 3 | 2 | 0 | 0 |" in page
    assert "- text, theirs passed, ours failed: `text::t1`. Says: `AssertionError: ours`." in page
    assert "- shape, theirs error, ours passed: `shape::t1`. Says: `AssertionError: theirs`." in page
    assert "- text, theirs failed, ours failed: `text::t2`." in page
    assert "5 tests made 10 syncs through distmetrics; with torchmetrics' own, 0." in page
    monkeypatch.setitem(CAUSES, "AssertionError: ours", "a cause")
    lines = [line for line in markdown([_pair("text", "p" * 8, "p" + "f" * 7)], {}).splitlines() if "a cause" in line]
    assert len(lines) == 1
    assert lines[0].endswith("`text::t6` and 1 more. Says: `AssertionError: ours`. Cause: a cause.")
    assert cause_of("nothing that is known") == ""


def test_a_checkout_of_another_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert declared(tmp_path) == "no version"
    about = tmp_path / "src" / "torchmetrics" / "__about__.py"
    about.parent.mkdir(parents=True)
    about.write_text('__version__ = "0.0.1"\n')
    with pytest.raises(SystemExit):
        options([str(tmp_path)])
    assert "the checkout is of torchmetrics 0.0.1" in capsys.readouterr().err


def test_the_command_is_told_without_paths_of_this_machine(tmp_path: Path) -> None:
    words = [str(tmp_path), "--each", "4", "--out", str(tmp_path / "out"), "--families", "text"]
    assert shown(words, tmp_path) == "`python -m benchmarks.upstream_tests CHECKOUT --each 4 --families text`"


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
