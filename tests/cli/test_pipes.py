"""Commands whose output is read to its first line alone, as by ``| head -n 1``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard.left import guarded, leave

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "--help": 0,
    "postmortem FOLDER": 0,
    "postmortem FOLDER --json": 0,
    "postmortem FOLDER/none": 2,  # its error goes into the pipe, too
    "verify": 2,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_that_is_closed_ends_a_command_quietly_with_its_usual_exit_code(command, tmp_path):
    leave(tmp_path, guarded(400, absent=(2,)))
    arguments = ["-m", "distmetrics", *command.replace("FOLDER", str(tmp_path)).split()]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    read_end, write_end = os.pipe()
    os.close(read_end)  # nobody reads, from the beginning: no race
    try:
        started = {"stdout": write_end, "env": environ, "timeout": 100, "check": False}
        both = subprocess.run([sys.executable, *arguments], stderr=write_end, **started)
        done = subprocess.run([sys.executable, *arguments], stderr=subprocess.PIPE, text=True, **started)
    finally:
        os.close(write_end)
    assert both.returncode == done.returncode == COMMANDS[command]
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_head_gets_its_line(tmp_path):
    leave(tmp_path, guarded(4, absent=(2,)))
    line = f"set -o pipefail; {sys.executable} -m distmetrics postmortem {tmp_path} --json | head -n 1"
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", line], capture_output=True, env=environ, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{\n", b"")
