"""The parts of the kit's benchmarks that decide and tell. No process is started."""

from __future__ import annotations

import pytest

from benchmarks import kit, kit_torchmetrics
from benchmarks.kit_results import Judged, totals, undocumented, why, write
from distmetrics import ThreadWorld, sync_and_compute
from distmetrics.testing import laws


def violation(law: str = "no-hang", detail: str = "rank 0 | waits\nfor ever") -> dict[str, object]:
    return {
        "law": law,
        "detail": detail,
        "shards": ["(1,)", "no data"],
        "expected": "1",
        "got": ["1", "2"],
        "text": "A breaks a law",
        "again": True,
    }


def row(name: str, sync: str, *broken: str, error: str = "") -> Judged:
    report = {
        "judged": dict.fromkeys(["single-is-sharded", "no-hang", "state-restored", "sample-order"], 2),
        "skipped": {"associative": "not of its own sync"},
        "violations": [violation(law) for law in broken],
    }
    return Judged(name, "group", sync, 1.5, {} if error else report, error)


ROWS = [
    row("A", "own", "state-restored"),
    row("A", "distmetrics"),
    row("B[x]", "own", "state-restored", "no-hang"),
    row("B[x]", "distmetrics", "no-hang"),
    row("BinaryFairness", "distmetrics", "sample-order"),
    row("C", "own", error="no end after 60 s"),
]


def test_only_what_no_known_fault_explains_is_undocumented(tmp_path):
    assert undocumented(ROWS) == ["B[x]: no-hang: rank 0 | waits"]
    assert "counted as group 0" in why("BinaryFairness", "sample-order")
    own, ours = totals(ROWS)
    assert own.startswith(
        "own sync: 2 of 2 classes break a law, 1 of them another one than state-restored; 3 violations"
    )
    assert ours.startswith("distmetrics sync: 2 of 3 classes break a law")
    write(ROWS, tmp_path, {"command": "`x`"})
    page = (tmp_path / "kit_torchmetrics.md").read_text()
    assert "- `B[x]`, no-hang: rank 0 \\| waits. Cause: **not documented**." in page
    assert "- `C`, own: no end after 60 s" in page


def test_a_class_is_judged_and_its_case_shows_the_violation_again():
    found = kit_torchmetrics.judge("BinaryAUROC", "own", 1, 0)
    assert found["metric"] == "BinaryAUROC"
    assert {case["law"]: case["again"] for case in found["violations"]} == {"state-restored": True, "no-hang": True}


def test_laws_that_a_class_cannot_keep_are_off_with_a_reason():
    asked = kit_torchmetrics.asked_of("CatMetric")
    assert laws.RANK_ORDER not in asked
    assert asked.off_because[laws.RANK_ORDER]
    assert kit_torchmetrics.asked_of("BinaryAUROC") == laws.DEFAULT


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_world_has_the_same_samples(world_size):
    single = float(kit.filled(0, 1).compute())
    values = ThreadWorld(world_size).run(lambda comm: sync_and_compute(kit.filled(comm.rank, world_size), comm=comm))
    assert values == [single] * world_size
    assert 0 < single < 1
