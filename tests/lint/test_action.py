"""The GitHub Action, by the lines of its own shell, and the pages of the rules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from distlint.cli import main
from distlint.pages import pages
from distlint.rules import RULES
from tests.lint.helpers import HANG, UNUSED, environment, python, write

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS = {step.get("name", step.get("uses")): step for step in ACTION["runs"]["steps"]}


def test_the_action_annotates_and_fails_and_its_report_never_does_and_the_hook_heeds_exclude(tmp_path):
    """Whatever names of files there are; what looks like a command is run by no shell."""
    program = tmp_path / "bin" / "distlint"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m distlint "$@"\n')
    program.chmod(0o755)
    write(tmp_path, c=UNUSED, **{"a b": HANG})

    def run(step, **inputs):
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        given = {name.upper(): ACTION["inputs"][name]["default"] for name in ("paths", "args")}
        env = {**environment(), "PATH": path, "RUNNER_TEMP": str(tmp_path), **given, **inputs}
        shell = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", STEPS[step]["run"]]
        return subprocess.run(shell, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = run("Check", PATHS="'a b.py'\nc.py\n", ARGS="--select 'DL101'")
    assert done.returncode == 1, done.stderr
    assert [line.partition("file=")[2].partition(",")[0] for line in done.stdout.splitlines()] == ["a b.py"]
    done = run("Check", PATHS="'$(touch x)' none.py", ARGS="")
    assert (done.returncode, done.stdout, (tmp_path / "x").exists()) == (2, "", False)
    done = run("Check", PATHS="it's")
    assert (done.returncode, done.stdout) == (1, ""), "a quote left open"
    assert run("Report to code scanning").returncode == 0
    upload = STEPS["github/codeql-action/upload-sarif@v3"]
    assert upload["with"]["sarif_file"] == "${{ runner.temp }}/distlint.sarif"
    assert '"version": "2.1.0"' in (tmp_path / "distlint.sarif").read_text()
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    write(tmp_path, pyproject_toml='[tool.distlint]\nexclude = ["a b.py"]\n')
    done = python("-m", *hook["entry"].split(), str(tmp_path / "a b.py"), str(tmp_path / "c.py"))
    assert (done.returncode, "a b.py" in done.stdout, "c.py" in done.stdout) == (1, False, True), done.stderr


def test_the_pages_of_the_rules_are_those_that_the_command_writes(tmp_path):
    """``distlint rules --pages docs/rules`` writes them anew."""
    assert main(["rules", "--pages", str(tmp_path / "rules")]) == 0
    made = pages(RULES.values())
    for folder in (tmp_path / "rules", ROOT / "docs" / "rules"):
        assert {path.name: path.read_text("utf-8") for path in folder.iterdir()} == made
    for code, rule in RULES.items():
        assert f"| [{code}]({code}.md) | {rule.name}" in made["README.md"]
