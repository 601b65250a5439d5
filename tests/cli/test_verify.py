"""``python -m distmetrics verify``: what is compared, what is told, and one real run."""

from __future__ import annotations

import itertools
import json
import math

import pytest

from distmetrics.cli import main
from distmetrics.cli.verify import Verdict, judge, table
from distmetrics.cli.verify_cell import bounds

EXPECTED = {"even": {"RMSE": 0.5, "confusion 0": 3.0}, "weights": [1.0, 2.0]}


def cell(**changed):
    return {"even": EXPECTED["even"] | changed, "weights": [1.0, 2.0]}


def test_equal_values_are_equal():
    verdict = judge("ddp", 2, cell(RMSE=0.5 + 1e-9), EXPECTED)
    assert verdict.ok
    assert str(verdict) == "ok 2/2, weights 0e+00"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (cell(RMSE=0.51), "even/RMSE: 0.51 instead of 0.5"),
        (cell(**{"confusion 0": 3.0 + 1e-9}), "even/confusion 0: 3.000000001 instead of 3.0"),  # counts are exact
        (cell(RMSE=math.nan), "even/RMSE: nan instead of 0.5"),
        ({"even": {"RMSE": 0.5}, "weights": [1.0, 2.0]}, "even/confusion 0: None instead of 3.0"),
        (cell(extra=1.0), "even/extra: 1.0 instead of None"),
    ],
)
def test_a_value_that_differs_is_named(found, said):
    verdict = judge("ddp", 2, found, EXPECTED)
    assert verdict.differ == (said,)
    assert not verdict.ok


def test_weights_that_differ():
    assert not judge("ddp", 2, EXPECTED | {"weights": [1.0, 2.00001]}, EXPECTED).ok


def test_what_was_not_run_is_no_pass():
    verdict = Verdict("xla", 2, problem="torch_xla is not installed")
    assert not verdict.ok
    assert table([verdict]) == "| strategy | 2 |\n|---|---|\n| `xla` | not run: torch_xla is not installed |"


def test_shards():
    for layout in ("even", "uneven", "one rank empty"):
        for world_size in (2, 3, 4):
            cuts = bounds(layout, world_size)
            assert (cuts[0], cuts[-1], len(cuts)) == (0, 24, world_size + 1)
            lengths = [stop - start for start, stop in itertools.pairwise(cuts)]
            assert (0 in lengths) == (layout == "one rank empty")
            assert (len(set(lengths)) == 1) == (layout == "even")


def test_an_unknown_strategy(capsys):
    assert main(["verify", "--strategies", "ddq"]) == 2
    assert "there is no strategy ddq" in capsys.readouterr().err


@pytest.mark.gloo
@pytest.mark.timeout(180)
def test_two_strategies_for_real(capsys, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- made by python -m distmetrics verify -->\nold\n<!-- end -->\nafter\n")
    assert main(["verify", "--strategies", "dp,ddp", "--devices", "2", "--json", "--update", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(v["strategy"], v["equal"], v["differ"], v["problem"]) for v in found] == [
        ("dp", 48, [], ""),
        ("ddp", 48, [], ""),
    ]
    assert all(v["weights"] <= 1e-6 for v in found)
    lines = page.read_text().splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert "old" not in lines
    assert lines[4].startswith("| `dp` | ok 48/48")
