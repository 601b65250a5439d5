"""The GitHub Action and the pre-commit hook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from distlint.rules import RULES
from tests.lint.helpers import environment

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS = {step.get("name", step.get("uses")): step for step in ACTION["runs"]["steps"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    program = tmp_path / "bin" / "distlint"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m distlint "$@"\n')
    program.chmod(0o755)
    (tmp_path / "a b.py").write_text(RULES["DL101"].bad[0].source)
    (tmp_path / "c.py").write_text("x = 1  # distlint: ignore[DL101]\n")
    return tmp_path


def run(step: str, folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    given = {"PATHS": ACTION["inputs"]["paths"]["default"], "ARGS": ACTION["inputs"]["args"]["default"], **inputs}
    env = {**environment(), "PATH": path, "RUNNER_TEMP": str(folder), **given}
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", STEPS[step]["run"]]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("paths", "args", "code", "annotated"),
    [
        (".", "", 1, ["a b.py", "c.py"]),
        ("'a b.py'\nc.py\n", "--select 'DL101'", 1, ["a b.py"]),
        ("c.py", "--ignore DL900", 0, []),
        ("'$(touch x)' none.py", "", 2, []),
    ],
)
def test_the_check_annotates_and_fails(paths: str, args: str, code: int, annotated: list[str], folder: Path) -> None:
    done = run("Check", folder, PATHS=paths, ARGS=args)
    assert done.returncode == code, done.stderr
    assert [line.partition("file=")[2].partition(",")[0] for line in done.stdout.splitlines()] == annotated
    assert not (folder / "x").exists()


def test_the_report_for_code_scanning_never_fails(folder: Path) -> None:
    assert run("Report to code scanning", folder).returncode == 0
    upload = STEPS["github/codeql-action/upload-sarif@v3"]
    assert upload["with"]["sarif_file"] == "${{ runner.temp }}/distlint.sarif"
    assert '"version": "2.1.0"' in (folder / "distlint.sarif").read_text()


def test_scripts_get_inputs_by_their_environment_alone() -> None:
    for step in STEPS.values():
        assert "${{" not in step.get("run", "")


def test_the_hook_installs_the_linter_and_no_torch() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert (hook["language"], hook["additional_dependencies"]) == ("python", ["./lint"])
    assert (ROOT / "lint" / "pyproject.toml").exists()
    assert hook["entry"].startswith("distlint check ")


def test_the_hooks_command_is_one(folder: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    (folder / "pyproject.toml").write_text('[tool.distlint]\nexclude = ["a b.py"]\n')
    command = [sys.executable, "-m", *hook["entry"].split(), "a b.py", "c.py", "--output-format", "json"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert [item["path"] for item in json.loads(done.stdout)] == ["c.py"]
