"""Shared by the linter's tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import libcst as cst
from hypothesis import HealthCheck, settings

import distlint
from distlint.check import check_source
from distlint.cli import main
from distlint.edits import Change
from distlint.facts import Facts
from distlint.rules import RULES
from distlint.rules.base import Rule
from distlint.source import Source, dotted
from distlint.text import Text

ALL = list(RULES.values())
MANY = Facts(devices="many")
HEAD = "import torch.distributed as dist\n"
GUARDED = "if dist.get_rank() == 0:\n    dist.barrier()\n"
HANG = HEAD + GUARDED  # DL101 at 3:5
UNUSED = "x = 1  # distlint: ignore[DL101] long ago\n"  # DL900, with a safe fix
# DL202 where several devices run it, with a safe fix
WAITS = """\
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("val_loss", loss)
"""
# Few in each run; DISTLINT_EXAMPLES=5000 once in a while.
EXAMPLES = int(os.environ.get("DISTLINT_EXAMPLES", "25"))
RELAXED = settings(
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def check(source, *codes, facts=MANY, prefilter=True):
    """Return the findings of some rules, or of all, in a dedented source."""
    rules = [RULES[code] for code in codes] if codes else ALL
    data = textwrap.dedent(source).encode()
    return check_source(data, "model.py", rules, facts, prefilter=prefilter)


def lines(source, *codes):
    """Return the lines of the findings."""
    return [found.line for found in check(source, *codes)]


def parsed(source, facts=MANY):
    """Return a dedented source with its tree."""
    return Source(Text(textwrap.dedent(source)), "model.py", facts)


def called(repair=None, *, safe=True, wanted="bad", code="DL998"):
    """Return a rule that reports every call of one name, with changes that the test gives."""

    class Called(Rule):
        """A call."""

        name = "called"
        tokens = ((b"",),)

        def check(self):
            for call in self.source.nodes(cst.Call):
                if dotted(call.func) == wanted:
                    changes = repair(self.source, call) if repair is not None else ()
                    self.report(call, f"{wanted} is called", *changes, safe=safe)

    Called.__name__ = code
    return Called


def put(text):
    """Return a repair that puts a text in place of the whole call."""
    return lambda _source, call: [Change(call, text)]


def beside(text, where):
    """Return a repair that adds lines, and calls what is good."""
    return lambda _source, call: [Change(call, text, where), Change(call.func, "good")]


def write(folder, **files):
    """Write files: ``src__a`` is ``src/a.py``, and ``conf__run_yaml`` is ``conf/run.yaml``."""
    for name, text in files.items():
        stem, _, ending = name.replace("__", "/").rpartition("_")
        known = ending in ("yaml", "toml", "json", "sh", "sbatch", "yml", "ipynb", "cfg", "txt")
        path = folder / (f"{stem}.{ending}" if known else f"{name.replace('__', '/')}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def found(capsys, *arguments):
    """Return path and code of each finding that the command line tells."""
    capsys.readouterr()
    assert main(["check", "--output-format", "json", *map(str, arguments)]) in (0, 1)
    shown = json.loads(capsys.readouterr().out)
    return [(Path(each["path"]).as_posix(), each["code"]) for each in shown]


def environment():
    """Return the environment of processes that import this distlint."""
    home = str(Path(distlint.__file__).parents[1])
    path = os.pathsep.join([home, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def python(*arguments):
    """Run Python in a process of its own that finds this distlint."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
