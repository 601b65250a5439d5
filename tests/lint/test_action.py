"""The GitHub Action and the pre-commit hook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.lint.helpers import HANG, UNUSED, environment

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS = {step.get("name", step.get("uses")): step for step in ACTION["runs"]["steps"]}
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))


@pytest.fixture
def folder(tmp_path):
    program = tmp_path / "bin" / "distlint"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m distlint "$@"\n')
    program.chmod(0o755)
    (tmp_path / "a b.py").write_text(HANG)
    (tmp_path / "c.py").write_text(UNUSED)
    return tmp_path


def run(step, folder, **inputs):
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    given = {name.upper(): ACTION["inputs"][name]["default"] for name in ("paths", "args")}
    env = {**environment(), "PATH": path, "RUNNER_TEMP": str(folder), **given, **inputs}
    shell = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", STEPS[step]["run"]]
    return subprocess.run(shell, env=env, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("paths", "args", "code", "annotated"),
    [
        (".", "", 1, ["a b.py", "c.py"]),
        ("'a b.py'\nc.py\n", "--select 'DL101'", 1, ["a b.py"]),
        ("c.py", "--ignore DL900", 0, []),
        ("'$(touch x)' none.py", "", 2, []),
    ],
)
def test_the_check_annotates_and_fails(paths, args, code, annotated, folder):
    done = run("Check", folder, PATHS=paths, ARGS=args)
    assert done.returncode == code, done.stderr
    shown = [line.partition("file=")[2].partition(",")[0] for line in done.stdout.splitlines()]
    assert shown == annotated
    assert not (folder / "x").exists()


def test_the_report_for_code_scanning_never_fails(folder):
    assert run("Report to code scanning", folder).returncode == 0
    upload = STEPS["github/codeql-action/upload-sarif@v3"]
    assert upload["with"]["sarif_file"] == "${{ runner.temp }}/distlint.sarif"
    assert '"version": "2.1.0"' in (folder / "distlint.sarif").read_text()


def test_the_hook_installs_the_linter_and_its_command_is_one(folder):
    assert (HOOK["language"], HOOK["additional_dependencies"]) == ("python", ["./lint"])
    assert (ROOT / "lint" / "pyproject.toml").exists()
    (folder / "pyproject.toml").write_text('[tool.distlint]\nexclude = ["a b.py"]\n')
    command = [sys.executable, "-m", *HOOK["entry"].replace("distlint", "distlint").split()]
    command += ["a b.py", "c.py", "--output-format", "json"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, check=False)
    assert done.returncode == 1, done.stderr
    assert [item["path"] for item in json.loads(done.stdout)] == ["c.py"]
