"""The programs of examples/ run as they are, and say what they should."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.programs import run_program

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
DDP = ("--strategy", "ddp", "--devices", "2")
TWO = ("--strategy", "ddp_spawn", "--devices", "2")
RUNS = [
    ("digits", (), r"test accuracy 0\.[89]"),
    ("digits", DDP, r"test accuracy 0\.[89]"),
    ("hardware_agnostic", (), r"the same as one process: True\nmacro F1 0\.[789]"),
    ("hardware_agnostic", TWO, r"the same as one process: True\nmacro F1 0\.[5-9]"),
    ("dp_step_end", (), r"accuracy 0\.[789]\d*\npredictions of an epoch: 64\nas on one device: True"),
    ("manual_all_gather", (), r"median loss \S+ of 300 samples\nstopped early: True"),
    ("manual_all_gather", TWO, r"median loss \S+ of 300 samples\nstopped early: True"),
    ("own_process_group", (), r"patient: accuracy 0\.[789]"),
    ("five_steps", (), "runner as plain torch: True\ntrainer as plain torch: True"),
    ("five_steps", TWO, "runner as plain torch: True\ntrainer as plain torch: True"),
    ("evaluation_harness", ("--ranks", "2"), r"choices: 0\.\d+\n.*\ngeneration: 0\.\d+\nperplexity: \d"),
    ("picklable", (), r"module\S+ is a lambda defined at .*\ntested: \['test_acc'\]"),
]


LONG = [("digits", DDP), ("manual_all_gather", TWO), ("five_steps", TWO), ("hardware_agnostic", TWO)]


@pytest.mark.gloo
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        # one run by start-up of other ranks is enough for each commit
        pytest.param(*run, id=" ".join((run[0], *run[1])), marks=[pytest.mark.long] if run[:2] in LONG else [])
        for run in RUNS
    ],
)
def test_runs(name, options, said, tmp_path):
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::UserWarning:distmetrics"}
    done = run_program([EXAMPLES / f"{name}.py", *options], cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    assert re.search(said, done.stdout), done.stdout + done.stderr


def test_each_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {name for name, _, _ in RUNS}


def test_each_is_named_in_the_docs():
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert [path.name for path in EXAMPLES.glob("*.py") if f"examples/{path.name}" not in pages] == []
