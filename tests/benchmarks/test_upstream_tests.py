"""The parts of the benchmark with torchmetrics' own tests that decide: the sample, what is read, compared and told.

And, between processes, that the metrics do sync through distmetrics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchmetrics import MeanMetric, SumMetric

from benchmarks.upstream_tests.__main__ import options, shown
from benchmarks.upstream_tests.patched import install, syncs
from benchmarks.upstream_tests.plugin import sample
from benchmarks.upstream_tests.results import CAUSES, Outcome, Pair, Run, markdown, part, read
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
        letters_at = [(i, x) for i, x in enumerate(letters) if x != " "]
        tests = {f"t{i}": Outcome(kinds[x], said if x in "fe" else "", each) for i, x in letters_at}
        return Run({f"tests.unittests.{family}::{name}": outcome for name, outcome in tests.items()})

    return Pair(family, 9, made(theirs, "AssertionError: theirs", 0), made(ours, "AssertionError: ours", 2))


def test_the_page_has_a_line_a_family_and_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = _pair("text", "pppffse", "pf efse")
    assert pair.differ == [f"tests.unittests.text::t{number}" for number in (1, 2, 3)]
    assert pair.of(pair.differ[1]) == (Outcome("passed"), Outcome("error", "not run"))
    assert pair.alike == [f"tests.unittests.text::t{number}" for number in (4, 6)]
    page = markdown([_pair("text", "ppf", "pff"), _pair("shape", "pe", "pp")], {"sample": "all cases"})
    assert "| text | 9 | 3 | 2 | 1 | 0 | 0 | 1 | 2 | 0 | 0 |" in page
    assert "| all | 18 | 5 | 3 | 1 | 1 | 0 | 3 | 2 | 0 | 0 |" in page
    assert "- text, theirs passed, ours failed: `text::t1`. Says: `AssertionError: ours`." in page
    assert "- shape, theirs error, ours passed: `shape::t1`. Says: `AssertionError: theirs`." in page
    assert "5 tests made 10 syncs through distmetrics; with torchmetrics' own, 0." in page
    monkeypatch.setitem(CAUSES, "AssertionError: ours", "a cause")
    lines = [line for line in markdown([_pair("text", "p" * 8, "p" + "f" * 7)], {}).splitlines() if "a cause" in line]
    assert len(lines) == 1
    assert lines[0].endswith("`text::t6` and 1 more. Says: `AssertionError: ours`. Cause: a cause.")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkout of another version is refused; no path of this machine is told."""
    about = tmp_path / "src" / "torchmetrics" / "__about__.py"
    about.parent.mkdir(parents=True)
    about.write_text('__version__ = "0.0.1"\n')
    with pytest.raises(SystemExit):
        options([str(tmp_path)])
    assert "the checkout is of torchmetrics 0.0.1" in capsys.readouterr().err
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
