"""Shared by the linter's tests."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import distlint
from distlint.engine import check_source
from distlint.model import Finding
from distlint.rules import RULES


def check(source: str, *codes: str, prefilter: bool = True) -> list[Finding]:
    """Findings of some rules, or of all, in a dedented source."""
    rules = [RULES[code] for code in codes] if codes else list(RULES.values())
    return check_source(textwrap.dedent(source).encode(), "model.py", rules, prefilter=prefilter)


def lines(source: str, *codes: str) -> list[int]:
    """The lines of the findings."""
    return [found.line for found in check(source, *codes)]


def environment() -> dict[str, str]:
    """For processes that import this distlint."""
    path = os.pathsep.join([str(Path(distlint.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own that finds this distlint."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment())
