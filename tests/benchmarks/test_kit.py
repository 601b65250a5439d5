"""The parts of the kit's benchmarks that decide and tell."""

from __future__ import annotations

import pytest

from benchmarks import kit, kit_torchmetrics
from benchmarks.kit_torchmetrics import Row, append, markdown, read, total, undocumented, why
from distmetrics import ThreadWorld, sync_and_compute
from distmetrics.testing import laws

HELD = "1 14 15"
ROWS = [
    Row("A", "own", HELD, "13", 1, "state changed"),
    Row("A", "distmetrics", f"{HELD} 13"),
    Row("B[x]", "own", "1 14", "13 15", 2, "state changed\nrank 0 | waits"),
    Row("B[x]", "distmetrics", "1 13 14", "15", 1, "rank 0 | waits"),
    Row("BinaryFairness", "distmetrics", "1 15", "7", 1, "2 instead of 1"),
    Row("C", "own", error="no end after 60 s"),
]


def test_only_what_no_known_fault_explains_is_undocumented(tmp_path):
    """Rows are kept, counted and told."""
    for row in ROWS:
        append(tmp_path / "kit.csv", row)
    rows = read(tmp_path / "kit.csv")
    assert rows == ROWS
    assert total(rows, "own") == (
        "own sync: 2 of 2 classes break a law, 1 of them another one than state-restored; "
        "3 violations, of which 3 show again on their smallest case; 1 cases not judged"
    )
    assert undocumented(rows) == ["B[x]: no-hang: rank 0 | waits"]
    assert "counted as group 0" in why("BinaryFairness", laws.SAMPLE_ORDER)
    page = markdown(rows, {"command": "`x`"})
    assert "| 15 no-hang | 1 of 2 | 1 of 3 |" in page
    assert "- `B[x]`, no-hang: rank 0 \\| waits. Cause: **not documented**." in page
    assert "- `C`, own: no end after 60 s" in page


def test_a_class_is_judged_and_its_case_shows_the_violation_again():
    found = kit_torchmetrics.judge("BinaryAUROC", "own", 1)
    assert (found.broken, found.again) == ("13 15", 2)


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
