"""The GitHub Action, by the lines of its own shell, and the pages of the rules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from distlint.cli import main
from distlint.pages import pages
from distlint.rules import RULES
from tests.lint.helpers import HANG, UNUSED, environment, python

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS = {step.get("name", step.get("uses")): step for step in ACTION["runs"]["steps"]}


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
        ("'a b.py'\nc.py\n", "--select 'DL101'", 1, ["a b.py"]),
        ("'$(touch x)' none.py", "", 2, []),
    ],
)
def test_the_check_annotates_and_fails_and_the_report_never_does(paths, args, code, annotated, folder):
    done = run("Check", folder, PATHS=paths, ARGS=args)
    assert done.returncode == code, done.stderr
    assert [line.partition("file=")[2].partition(",")[0] for line in done.stdout.splitlines()] == annotated
    assert not (folder / "x").exists()
    if code == 1:
        assert run("Report to code scanning", folder).returncode == 0
        upload = STEPS["github/codeql-action/upload-sarif@v3"]
        assert upload["with"]["sarif_file"] == "${{ runner.temp }}/distlint.sarif"
        assert '"version": "2.1.0"' in (folder / "distlint.sarif").read_text()


def test_the_hook_leaves_out_what_is_excluded(folder):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    (folder / "pyproject.toml").write_text('[tool.distlint]\nexclude = ["a b.py"]\n')
    done = python("-m", *hook["entry"].split(), str(folder / "a b.py"), str(folder / "c.py"))
    assert done.returncode == 1, done.stderr
    assert ("a b.py" in done.stdout, "c.py" in done.stdout) == (False, True)


def test_the_pages_of_the_rules_are_those_that_the_command_writes(tmp_path):
    """``distlint rules --pages docs/rules`` writes them anew."""
    assert main(["rules", "--pages", str(tmp_path / "rules")]) == 0
    made = pages(RULES.values())
    for folder in (tmp_path / "rules", ROOT / "docs" / "rules"):
        assert {path.name: path.read_text("utf-8") for path in folder.iterdir()} == made
    for code, rule in RULES.items():
        assert f"| [{code}]({code}.md) | {rule.name}" in made["README.md"]
