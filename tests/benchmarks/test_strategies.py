"""``python -m benchmarks.strategies``: what is compared, what is told, and one real run."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from benchmarks.strategies import __main__ as benchmark
from benchmarks.strategies import cell as cells
from benchmarks.strategies.data import Shards, bounds, counts
from benchmarks.strategies.tables import Verdict, judge, tables
from distmetrics.errors import ConfigurationError

EXPECTED = {"logged": {"even": {"RMSE": 0.5, "confusion 0": 3.0}}, "float32": [1.0, 2.0], "bf16": [1.0, 2.0]}


def cell(**changed):
    return EXPECTED | {"logged": {"even": EXPECTED["logged"]["even"] | changed}}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (cell(RMSE=0.5 + 1e-9), []),
        (cell(RMSE=0.51), ["even/RMSE: 0.51 instead of 0.5"]),
        (cell(**{"confusion 0": 3.0 + 1e-9}), ["even/confusion 0: 3.000000001 instead of 3.0"]),  # counts are exact
        (cell(RMSE=math.nan), ["even/RMSE: nan instead of 0.5"]),
        (EXPECTED | {"logged": {"even": {"RMSE": 0.5}}}, ["even/confusion 0: None instead of 3.0"]),
        (cell(extra=1.0), ["even/extra: 1.0 instead of None"]),
    ],
)
def test_a_value_that_differs_is_named(found, said):
    verdict = judge("ddp", 2, found, EXPECTED)
    assert (verdict.differ, verdict.wrong) == (said, bool(said))


@pytest.mark.parametrize(
    ("part", "value", "in_parts", "said"),
    [
        ("float32", 2 + 9e-7, None, "9e-07"),
        ("float32", 2.00001, None, "WRONG 1e-05"),
        ("float32", math.nan, None, "WRONG inf"),
        ("bf16", 2.0019, None, "2e-03"),
        ("bf16", 2.0021, None, "WRONG 2e-03"),
        ("bf16", 2.02, 2.02, "2.0e-02 (from the same parts 0e+00)"),
        ("bf16", 2.0005, 2.02, "5e-04"),  # near the whole batches: that is enough
        ("bf16", 2.021, 2.02, "WRONG 2e-02"),
    ],
)
def test_weights_have_limits(part, value, in_parts, said):
    expected = EXPECTED | ({"bf16 in parts": [1.0, in_parts]} if in_parts else {})
    verdict = judge("ddp", 2, EXPECTED | {part: [1.0, value]}, expected)
    assert verdict.weight(part) == said
    assert verdict.wrong == ("WRONG" in tables([verdict])) == said.startswith("WRONG")


def test_a_row_counts_worlds_and_layouts_and_what_was_not_run_is_no_pass():
    both = EXPECTED | {"logged": dict.fromkeys(("even", "uneven"), EXPECTED["logged"]["even"])}
    good = judge("ddp", 2, both, EXPECTED)
    bad = judge("ddp", 3, cell(**{"confusion 0": 2.0}), EXPECTED)
    lost = Verdict("xla", 2, problems={"float32": "no torch_xla"})
    alike = [judge(name, 2, EXPECTED, EXPECTED) for name in ("dp", "ddp2")]
    assert tables([good, bad, lost, *alike]).splitlines() == [
        "| strategy | processes | equal values | weights (≤ 1e-06) | uneven training (≤ 1e-06) | bf16 (≤ 2e-03) |",
        "|---|---|---|---|---|---|",
        "| `ddp` | 2, 3 | WRONG 5/6 | 0e+00 | not run | 0e+00 |",
        "| `xla` |  | not run | not run | not run | not run |",
        "| `dp`, `ddp2` | 2 | 2/2 | 0e+00 | not run | 0e+00 |",
    ]
    assert str(good) == "ok 4/4, weights 0e+00, bf16 0e+00"
    assert str(bad).startswith("WRONG 1/2, weights 0e+00")
    assert str(lost) == "not run: no torch_xla"


@pytest.mark.timeout(120)
def test_parts_in_one_process_are_those_of_ranks(tmp_path, monkeypatch):
    found = {devices: cells.run("bf16", "single", devices, tmp_path / "cell.json") for devices in (1, 2)}
    assert found[1]["bf16"] == found[1]["bf16 in parts"]
    whole, parts = (torch.tensor(found[2][name]) for name in ("bf16", "bf16 in parts"))
    torch.testing.assert_close(parts, whole, rtol=0, atol=2e-3)
    assert not torch.equal(parts, whole)
    monkeypatch.setattr(cells, "ONE_PROCESS", ("dp", "ddp2"))
    with pytest.raises(ConfigurationError, match="1 ranks or devices are at work, not 2"):
        cells.run("float32", "single", 2, tmp_path / "cell.json")


class Rank:
    """What a data module asks of its trainer."""

    def __init__(self, rank, world_size):
        self.global_rank, self.world_size = rank, world_size


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_one_process_trains_on_what_the_ranks_have_together(devices, uneven):
    def batches(rank, world_size):
        data = Shards(devices, steps=counts(devices) if uneven else ())
        data.trainer = Rank(rank, world_size)
        return list(data.train_dataloader().batch_sampler)

    ranks = [batches(rank, devices) for rank in range(devices)]
    assert (len({len(mine) for mine in ranks}) > 1) == uneven
    together = [sorted(itertools.chain(*step)) for step in itertools.zip_longest(*ranks, fillvalue=())]
    assert batches(0, 1) == together
    for layout in ("even", "uneven", "one rank empty"):
        lengths = [stop - start for start, stop in itertools.pairwise(bounds(layout, devices))]
        assert sum(lengths) == 24
        assert (0 in lengths) == (layout == "one rank empty")
        assert (len(set(lengths)) == 1) == (layout == "even")


@pytest.mark.gloo
@pytest.mark.timeout(400)
@pytest.mark.long
def test_two_strategies_for_real(capsys, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- made by python -m benchmarks.strategies -->\nold\n<!-- end -->\nafter\n")
    assert benchmark.main(["--strategies", "dp,ddp", "--devices", "2", "--update", str(page)]) == 0
    assert capsys.readouterr().out.count("ok 48/48, weights") == 2
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1], "old" in lines) == ("before", "after", False)
    assert lines[4].startswith("| `dp`")
    assert "| 2 | 48/48 |" in lines[4]
