"""``python -m benchmarks.frameworks``: how an outcome is judged, what is written, and one real run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import frameworks
from benchmarks.common import read_table
from benchmarks.frameworks_cases import Case, Outcome, Seen, cases_of

CASE = Case("Fabric", "update", 2, "one more", 17, 4, "map")
SINGLE = {"count": 17.0, "loss": 0.5}
GOOD = Seen(SINGLE, 17, [])


def outcome(ours: list[Seen], synced: int = 18, warned: list[str] | None = None) -> Outcome:
    return Outcome(CASE, SINGLE, ours, Seen({"count": 18.0, "loss": 0.5}, synced, warned or []))


def test_every_rank_is_judged() -> None:
    def wrong(**values: float) -> list[str]:
        return outcome([GOOD, GOOD._replace(values=values)]).ours_wrong

    assert wrong(count=17.0, loss=0.5 + 9e-7) == []
    assert wrong(count=17.0 + 1e-9, loss=0.5) == ["count"]  # counts are exact
    assert wrong(count=17.0, loss=float("nan")) == wrong(count=17.0) == ["loss"]
    assert outcome([GOOD._replace(synced=18)]).ours_wrong == ["synced"]
    assert outcome([GOOD._replace(warned=["1 of 18 samples"])]).false_warnings == 1
    said = "1 of 18 samples are repeats"
    assert outcome([GOOD], 18, [said]).warning == "right"
    assert outcome([GOOD], 18, ["2 of 18 samples"]).warning == outcome([GOOD], 18, [said] * 2).warning == "wrong number"
    assert (outcome([GOOD], 18).warning, outcome([GOOD], 17, [said]).warning) == ("missed", "false")
    assert outcome([GOOD], 17).warning == ""
    samples = [[case.samples for case in cases_of("", ("",), ("map",), world)][::2] for world in (1, 2, 3)]
    assert samples == [[8, 9, 1], [16, 17, 1], [24, 25, 2, 1]]  # none twice


@pytest.mark.gloo
@pytest.mark.timeout(120)
def test_one_real_run(tmp_path: Path) -> None:
    """Fabric alone counts a sample twice and a stream on every rank; the first of them is warned."""
    pytest.importorskip("lightning.fabric")
    frameworks.main(
        ["--frameworks", "fabric", "--world-sizes", "2", "--lengths", "one more", "--results", str(tmp_path)]
    )
    page = (tmp_path / "frameworks.md").read_text()
    assert "| Fabric | 2 | 6 | 0 | 6 | 0 | 6 |" in page
    assert read_table(page, frameworks._BAD) == []
    assert [line[2:9] for line in read_table(page, frameworks._PARTS)] == [
        ["update", "map", "2", "2", "2", "2", "0"],
        ["update", "iterable", "2", "2", "2", "0", "2"],
        ["update", "sized", "2", "2", "2", "0", "2"],
    ]
    assert "one more, batches of 4: count 18 for 17" in page
