"""``python -m benchmarks.strategies``: what is compared, what is told, and one real run."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.strategies import __main__ as benchmark
from benchmarks.strategies import cell as cells
from benchmarks.strategies import tables as written
from benchmarks.strategies.data import Shards, bounds, counts
from benchmarks.strategies.tables import Verdict, judge, tables
from distmetrics.errors import ConfigurationError

EXPECTED = {"logged": {"even": {"RMSE": 0.5, "confusion 0": 3.0}}, "float32": [1.0, 2.0], "bf16": [1.0, 2.0]}


def cell(**changed):
    return EXPECTED | {"logged": {"even": EXPECTED["logged"]["even"] | changed}}


def test_equal_values_are_equal():
    verdict = judge("ddp", 2, cell(RMSE=0.5 + 1e-9), EXPECTED)
    assert not verdict.wrong
    assert str(verdict) == "ok 2/2, weights 0e+00, bf16 0e+00"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (cell(RMSE=0.51), "even/RMSE: 0.51 instead of 0.5"),
        (cell(**{"confusion 0": 3.0 + 1e-9}), "even/confusion 0: 3.000000001 instead of 3.0"),  # counts are exact
        (cell(RMSE=math.nan), "even/RMSE: nan instead of 0.5"),
        (EXPECTED | {"logged": {"even": {"RMSE": 0.5}}}, "even/confusion 0: None instead of 3.0"),
        (cell(extra=1.0), "even/extra: 1.0 instead of None"),
    ],
)
def test_a_value_that_differs_is_named(found, said):
    verdict = judge("ddp", 2, found, EXPECTED)
    assert verdict.differ == [said]
    assert verdict.wrong


@pytest.mark.parametrize(
    ("part", "value", "wrong"),
    [
        ("float32", 2 + 9e-7, False),
        ("float32", 2.00001, True),
        ("float32", math.nan, True),
        ("bf16", 2.0019, False),
        ("bf16", 2.0021, True),
        ("bf16", math.nan, True),
    ],
)
def test_weights_have_limits(part, value, wrong):
    verdict = judge("ddp", 2, EXPECTED | {part: [1.0, value]}, EXPECTED)
    assert verdict.wrong == wrong
    assert ("WRONG" in tables([verdict])) == wrong


IN_PARTS = EXPECTED | {"bf16 in parts": [1.0, 2.02]}


@pytest.mark.parametrize(
    ("value", "said", "wrong"),
    [
        (2.02, "bf16 2.0e-02 (from the same parts 0e+00)", False),
        (2.0005, "bf16 5e-04", False),  # near the whole batches: that is enough
        (2.003, "bf16 WRONG 3e-03", True),
        (2.021, "bf16 WRONG 2e-02", True),
    ],
)
def test_rounding_of_parts_is_told_from_errors(value, said, wrong):
    verdict = judge("ddp", 3, EXPECTED | {"bf16": [1.0, value]}, IN_PARTS)
    assert str(verdict).endswith(said)
    assert verdict.wrong == wrong
    explained = judge("ddp", 4, EXPECTED | {"bf16": [1.0, 2.02]}, IN_PARTS)
    row = tables([verdict, explained]).splitlines()[2]
    assert row.endswith(f"| {said.removeprefix('bf16 ')} |" if wrong else "| 2.0e-02 (from the same parts 0e+00) |")


def test_another_world_than_asked_for_is_no_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "ONE_PROCESS", ("dp", "ddp2"))
    assert "float32" in cells.run("float32", "single", 1, tmp_path / "cell.json")
    with pytest.raises(ConfigurationError, match="1 ranks or devices are at work, not 2"):
        cells.run("float32", "single", 2, tmp_path / "cell.json")


@pytest.mark.timeout(120)
def test_parts_in_one_process_are_those_of_ranks(tmp_path):
    found = {devices: cells.run("bf16", "single", devices, tmp_path / "cell.json") for devices in (1, 2, 3)}
    assert found[1]["bf16"] == found[1]["bf16 in parts"]
    for devices in (2, 3):
        whole, parts = (torch.tensor(found[devices][name]) for name in ("bf16", "bf16 in parts"))
        torch.testing.assert_close(parts, whole, rtol=0, atol=2e-3)
        assert not torch.equal(parts, whole)


def test_what_was_not_run_is_no_pass():
    verdict = Verdict("xla", 2, problems={"float32": "torch_xla is not installed"})
    assert str(verdict) == "not run: torch_xla is not installed"
    assert tables([verdict]).splitlines()[2] == "| `xla` |  | not run | not run | not run | not run |"


def test_strategies_with_equal_rows_share_one():
    verdicts = [judge(name, 2, EXPECTED, EXPECTED) for name in ("dp", "ddp")]
    assert tables(verdicts).splitlines()[2:] == ["| `dp`, `ddp` | 2 | 2/2 | 0e+00 | not run | 0e+00 |"]


def test_tables_count_worlds_and_layouts():
    good = judge(
        "ddp", 2, EXPECTED | {"logged": dict.fromkeys(("even", "uneven"), EXPECTED["logged"]["even"])}, EXPECTED
    )
    bad = judge("ddp", 3, EXPECTED | {"logged": {"even": {"RMSE": 0.5, "confusion 0": 2.0}}}, EXPECTED)
    assert tables([good, bad]).splitlines() == [
        "| strategy | processes | equal values | weights (≤ 1e-06) | uneven training (≤ 1e-06) | bf16 (≤ 2e-03) |",
        "|---|---|---|---|---|---|",
        "| `ddp` | 2, 3 | WRONG 5/6 | 0e+00 | not run | 0e+00 |",
    ]
    assert str(good).startswith("ok 4/4, weights 0e+00")
    assert str(bad).startswith("WRONG 1/2, weights 0e+00")


def test_shards():
    for layout in ("even", "uneven", "one rank empty"):
        for world_size in (2, 3, 4):
            cuts = bounds(layout, world_size)
            assert (cuts[0], cuts[-1], len(cuts)) == (0, 24, world_size + 1)
            lengths = [stop - start for start, stop in itertools.pairwise(cuts)]
            assert (0 in lengths) == (layout == "one rank empty")
            assert (len(set(lengths)) == 1) == (layout == "even")


class Rank:
    """What a data module asks of its trainer."""

    def __init__(self, rank, world_size):
        self.global_rank, self.world_size = rank, world_size


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("uneven", [False, True])
def test_one_process_trains_on_what_the_ranks_have_together(devices, uneven):
    def batches(rank, world_size):
        data = Shards(devices, steps=counts(devices) if uneven else ())
        data.trainer = Rank(rank, world_size)
        return list(data.train_dataloader().batch_sampler)

    ranks = [batches(rank, devices) for rank in range(devices)]
    assert (len({len(mine) for mine in ranks}) > 1) == uneven
    together = [sorted(itertools.chain(*step)) for step in itertools.zip_longest(*ranks, fillvalue=())]
    assert batches(0, 1) == together
    apart = Shards(devices, apart=True)
    apart.trainer = Rank(0, 1)
    if not uneven:
        assert list(apart.train_dataloader().batch_sampler) == list(itertools.chain(*zip(*ranks, strict=True)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--strategies", "ddq"], "there is no strategy ddq"),
        (["--strategies", "xla", "--python", "xla=/no/such/python"], "takes STRATEGY=PATH"),
    ],
)
def test_wrong_words_are_refused(capsys, words, said):
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(words)
    assert said in capsys.readouterr().err


def test_what_is_asked_for():
    assert benchmark.options(["--python", f"xla={sys.executable}"]).python == [("xla", sys.executable)]
    assert "ddp_notebook" not in benchmark.options([]).strategies
    assert (benchmark.PARTS, benchmark.SPMD) == (cells.PARTS, cells.SPMD)
    assert written._IN_PARTS == cells.IN_PARTS


def test_what_fails_is_said_and_the_rest_is_run(monkeypatch, tmp_path):
    asked = []

    def process(python, arguments, strategy, devices):
        _, _, out, *parts = arguments
        asked.append(parts)
        if "float32" in parts:
            Path(out).write_text(json.dumps({"float32": [1.0]}))
            return "no uneven steps"
        if parts == ["bf16"]:
            Path(out).write_text(json.dumps({"float32": [1.0], "bf16": [1.0]}))
        return ""

    monkeypatch.setattr(benchmark, "run_parts", process)
    found = benchmark.run_cell(sys.executable, "ddp", 2, tmp_path)
    assert asked == [["float32", "uneven", "bf16"], ["bf16"]]
    assert found == {"float32": [1.0], "bf16": [1.0], "problems": {"uneven": "no uneven steps"}}
    monkeypatch.setattr(benchmark, "run_parts", lambda *arguments: "not installed")
    assert benchmark.run_cell(sys.executable, "fsdp", 2, tmp_path) == {"problems": {"float32": "not installed"}}


@pytest.mark.gloo
@pytest.mark.timeout(400)
@pytest.mark.long
def test_two_strategies_for_real(capsys, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- made by python -m benchmarks.strategies -->\nold\n<!-- end -->\nafter\n")
    assert benchmark.main(["--strategies", "dp,ddp", "--devices", "2", "--json", "--update", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [verdict["strategy"] for verdict in found] == ["dp", "ddp"]
    for verdict in found:
        assert sum(map(len, verdict["equal"].values())) == 48
        assert (verdict["differ"], verdict["problems"]) == ([], {})
        assert verdict["weights"].keys() == {"float32", "uneven", "bf16"}
    lines = page.read_text().splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert "old" not in lines
    assert lines[4].startswith("| `dp`")
    assert "| 2 | 48/48 |" in lines[4]
