"""Commands whose output is read to its first line alone, as by ``| head -n 1``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard.left import guarded, leave

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
