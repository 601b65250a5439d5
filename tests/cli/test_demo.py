"""What the demo counts as right, deals out, and shows of the linter; and commands whose output nobody reads on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.cli import main
from distmetrics.cli.demo import BAD_SCRIPT, judged, lint, shard_bounds
from tests.guard.left import guarded, leave


@pytest.mark.parametrize(
    ("ours", "truth", "right", "difference"),
    [
        (0.5 * (1 + 5e-7), 0.5, True, 2.5e-7),
        (0.5 * (1 + 2e-6), 0.5, False, 1e-6),
        ([[3, 1], [0, 1]], [[3, 1], [0, 2]], False, -1.0),
        ([[2, 2], [0, 2]], [[3, 1], [0, 2]], False, 0.0),  # the same number of samples, in the wrong cells
    ],
)
def test_what_counts_as_right(ours: Any, truth: Any, right: bool, difference: float) -> None:
    found = judged(ours, truth)
    assert (found["value"], found["equal"]) == (ours, right)
    assert found["difference"] == pytest.approx(difference)


@given(samples=st.integers(0, 10_000), world_size=st.integers(1, 16))
def test_shards_cover_everything_once(samples: int, world_size: int) -> None:
    bounds = shard_bounds(samples, world_size)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, samples, world_size + 1)
    assert bounds == sorted(bounds)


def test_the_linter_finds_the_four_mistakes_and_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted(finding["code"] for finding in lint(BAD_SCRIPT)) == ["DL001", "DL005", "DL101", "DL201"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["demo"]) == 2
    assert "pip install scikit-learn" in capsys.readouterr().err


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("command", "code", "err_too"),
    [("postmortem FOLDER --json", 0, False), ("postmortem FOLDER/none", 2, True)],
)
def test_a_closed_pipe_ends_a_command_quietly_with_its_usual_exit_code(command, code, err_too, tmp_path):
    leave(tmp_path, guarded(400, absent=(2,)))
    arguments = [sys.executable, "-m", "distmetrics", *command.replace("FOLDER", str(tmp_path)).split()]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    read_end, write_end = os.pipe()
    os.close(read_end)  # nobody reads, from the beginning: no race
    try:
        stderr = write_end if err_too else subprocess.PIPE
        done = subprocess.run(arguments, stdout=write_end, stderr=stderr, env=environ, timeout=100, check=False)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (code, None if err_too else b"")
