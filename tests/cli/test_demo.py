"""The main job, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from distmetrics.cli import main
from distmetrics.cli.demo import BAD_SCRIPT, Value, lint
from distmetrics.cli.demo_train import shard_bounds

pytestmark = [
    pytest.mark.gloo,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("demo"),
]  # one group, so that the demo runs once


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    command = [sys.executable, "-m", "distmetrics", "demo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_every_number_of_ours_is_the_single_process_number(report: dict[str, Any]) -> None:
    sections = report["sections"]
    assert [(s["data"], s["world_size"]) for s in sections] == [("breast cancer", 2), ("digits", 4)]
    for section in sections:
        assert len(set(section["shards"])) == section["world_size"], "the shards are to be uneven"
        assert set(section["metrics"]) == {
            "accuracy", "macro F1", "AUROC", "average precision", "loss", "confusion matrix",
        }  # fmt: skip
        for name, ways in section["metrics"].items():
            assert len(ways) == 6, name  # that of one process, and five ways to get it
            assert ways["distmetrics"]["equal"], name
            assert ways["torchmetrics"]["equal"], name


def test_the_three_wrong_numbers_are_wrong(report: dict[str, Any]) -> None:
    for section in report["sections"]:
        for way in ("rank 0 alone", "mean of ranks", "padded sampler"):
            assert not section["metrics"]["macro F1"][way]["equal"]
            assert not section["metrics"]["confusion matrix"][way]["equal"]


def test_what_the_trainer_logged_is_the_truth_too(report: dict[str, Any]) -> None:
    for section in report["sections"]:
        for name in ("accuracy", "macro F1", "AUROC", "average precision", "loss"):
            assert section["logged"][name] == pytest.approx(section["metrics"][name]["one process"]["value"], rel=1e-6)


def test_few_collectives_for_all_metrics(report: dict[str, Any]) -> None:
    """The scores ride along in the first round; those of ten classes, for all metrics together, need a second."""
    for section, together in zip(report["sections"], (1, 2), strict=True):
        assert section["collectives"]["distmetrics"] == together
        assert section["collectives"]["torchmetrics"] > 20


def test_the_linter_finds_the_four_mistakes(report: dict[str, Any]) -> None:
    assert sorted(finding["code"] for finding in report["findings"]) == ["DL001", "DL005", "DL101", "DL201"]
    assert lint(BAD_SCRIPT) == report["findings"]


@pytest.mark.parametrize(
    ("ours", "truth", "right", "difference"),
    [
        (0.5, 0.5, True, 0.0),
        (0.5 * (1 + 5e-7), 0.5, True, 2.5e-7),
        (0.5 * (1 + 2e-6), 0.5, False, 1e-6),
        ([[3, 1], [0, 2]], [[3, 1], [0, 2]], True, 0.0),
        ([[3, 1], [0, 1]], [[3, 1], [0, 2]], False, -1.0),
        ([[2, 2], [0, 2]], [[3, 1], [0, 2]], False, 0.0),  # the same number of samples, in the wrong cells
    ],
)
def test_what_counts_as_right(ours: Any, truth: Any, right: bool, difference: float) -> None:
    value = Value.of(ours, truth)
    assert value.equal is right
    assert value.difference == pytest.approx(difference)


def test_shards_cover_everything_once() -> None:
    for samples in range(30):
        for world_size in range(1, 6):
            bounds = shard_bounds(samples, world_size)
            assert (bounds[0], bounds[-1], len(bounds)) == (0, samples, world_size + 1)
            assert bounds == sorted(bounds)


def test_bad_usage_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["nonsense"])
    assert stop.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["demo"]) == 2
    assert "pip install scikit-learn" in capsys.readouterr().err
