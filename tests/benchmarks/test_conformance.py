"""The parts of the conformance benchmark that decide: layouts, verdicts, the page. No process is started."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.conformance.__main__ import spread
from benchmarks.conformance.case import LAYOUTS, batches, deal
from benchmarks.conformance.catalogue import cases, find
from benchmarks.conformance.ranks import Ended
from benchmarks.conformance.report import Row, cause_of, disagreements, is_possible, judge, write


def test_layouts_differ_in_what_their_names_say():
    for world_size in range(1, 6):
        sizes = {layout: deal(layout, world_size) for layout in LAYOUTS}
        assert all(sizes["even"][0] == rank for rank in sizes["even"])
        assert {size for rank in sizes["size 1"] for size in rank} == {1}
        assert not sizes["empty first"][0]
        assert not sizes["empty last"][-1]
        assert sum(bool(rank) for rank in sizes["empty but one"]) == 1
        assert (len({len(rank) for rank in sizes["batch counts"]}) > 1) == (world_size > 1)
        assert (len({sum(rank) for rank in sizes["ragged"]}) > 1) == (world_size > 1)
    once, again, other = (batches(find("BinaryAUROC"), "ragged", 3, rank)[0].args[0] for rank in (2, 2, 1))
    assert torch.equal(once, again)
    assert not torch.equal(once[:3], other[:3])


_ONE, _TWO = Ended("value", torch.tensor(1.0)), Ended("value", torch.tensor(2.0))
_NEAR = Ended("value", torch.tensor(1.0 + 1e-6))  # near, but not as the other rank
_ERROR, _OTHER = Ended("error", text="ValueError: no"), Ended("error", text="ValueError: other")
_HANG, _ABORT = Ended("hang"), Ended("abort", text="SIGABRT")


@pytest.mark.parametrize(
    ("single", "ranks", "verdict"),
    [
        (_ONE, [_ONE, _ONE], "ok"),
        (_ONE, [_ONE, _TWO], "wrong"),
        (_ONE, [_ONE, _NEAR], "wrong"),
        (_ERROR, [_ERROR, _ERROR], "ok"),
        (_ERROR, [_ONE, _ONE], "wrong"),
        (_ERROR, [_OTHER, _ERROR], "error"),
        (_ONE, [_ERROR, _HANG], "error"),
        (_ONE, [_ONE, _HANG], "hang"),
        (_ONE, [_ERROR, _ABORT], "abort"),
    ],
)
def test_verdict(single, ranks, verdict):
    assert judge(single, ranks)[0] == verdict


def test_the_page_lists_what_is_wrong_and_causes_and_the_sample(tmp_path):
    right = Row("SumMetric[numbers]", "aggregation", "distmetrics", "threads", 3, "even", "ok", "")
    rows = [right, replace(right, transport="gloo", verdict="hang", detail="rank 1: waits")]
    assert len(disagreements(rows)) == 1
    write(rows, {"BERTScore": "needs weights"}, {"command": "x"}, tmp_path)
    text = (tmp_path / "conformance.md").read_text()
    assert "- **hang** (even × 1): `SumMetric[numbers]`. W = 3, even: rank 1: waits." in text
    assert "| distmetrics, gloo | 1 | 1 | 1 | 0 | 0 | 0 | 1 | 0 |" in text
    kinds = {case.kind for case in cases().values()}
    assert len(kinds) >= 200
    impossible = {"Running", "RunningMean", "RunningSum", "PerceptualPathLength"}
    assert {kind for kind in kinds if not is_possible(kind)} == impossible
    assert "orig_dtype" in cause_of("FrechetInceptionDistance", "error")
    assert not cause_of("FrechetInceptionDistance", "hang")
    assert spread(["A", "A[x]", "B", "C[y]", "C", "D"], 2) == {"A", "C[y]"}
