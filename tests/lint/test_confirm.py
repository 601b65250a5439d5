"""``distlint confirm``: the rules' bad examples hang when they are run, and right code comes to its end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distlint.analysis.interpreter import analyse
from distlint.cli import main
from distlint.confirm import command
from distlint.confirm.command import findings
from distlint.confirm.search import Verdict, try_finding, try_lines
from distlint.model import Finding
from distlint.rules import RULES
from distlint.syntax import index_source

HANGS = {code: rule for code, rule in RULES.items() if code.startswith("DL1")}

# Findings of examples that cannot be run: what has to happen before is in no function around them.
NOT_RUNNABLE = {
    ("DL101-bad-8", 6): "two ranks are no mesh: calls of a group that is named are left out",
    ("DL101-bad-8", 10): "two ranks are no mesh",
    ("DL104-bad-3", 7): "two ranks are no mesh",
    ("DL103-bad-3", 18): "the list is filled by another method",
    ("DL103-bad-3", 37): "lists that are empty on one rank alone are none of the answers",
    ("DL105-bad-1", 21): "the dict is filled by another hook",
}
# Rules whose findings are of a kind that runs do not show yet: they must say so, and never "refuted".
NOT_YET = {
    "DL109": "the finding is at a handler, which no collective and no test stands in",
    "DL112": "stand-ins have no shapes",
}
# Good examples that part when they are run with every answer, and why the rules are silent all the same.
TOLERATED = {
    "DL103-good-1": "batches may hold other keys on each rank, which hardly any do",
    "DL106-good-1": "a function that fails and is called again, with a smaller world",
    "DL107-good-2": "what is logged at each step is reduced at once, what is logged for the epoch at its end",
}

SLOW = {"DL106-good-1": "thousands of small worlds"}


def _bad() -> Iterator[object]:
    for code, rule in HANGS.items():
        for number, example in enumerate(rule.bad):
            name = f"{code}-bad-{number}"
            for found in findings(example.source.encode(), f"{name}.py"):
                if found.code == code:
                    yield pytest.param(example.source, found, id=f"{name}:{found.line}")


def _good() -> Iterator[object]:
    for code, rule in HANGS.items():
        for number, source in enumerate(rule.good):
            name = f"{code}-good-{number}"
            yield pytest.param(source, id=name, marks=[pytest.mark.long] if name in SLOW else [])


@pytest.mark.parametrize(("source", "found"), list(_bad()))
def test_a_bad_example_hangs_at_its_finding(source: str, found: Finding) -> None:
    verdict = try_finding(analyse(index_source(source, found.path)), found)
    place = found.path.removesuffix(".py"), found.line
    is_open = place in NOT_RUNNABLE or found.code in NOT_YET
    assert verdict.outcome == ("not runnable" if is_open else "confirmed"), verdict.text
    if verdict.outcome == "confirmed":
        assert f"{found.path}:" in verdict.text or "the end" in verdict.text


@pytest.mark.parametrize("source", list(_good()))
def test_a_good_example_comes_to_its_end(source: str, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id
    analysis = analyse(index_source(source, "model.py"))
    lines = {event.node.lineno for event in analysis.events("collective", "log") if not event.effect.sharded}
    outcomes = {line: try_lines(analysis, [line]) for line in sorted(lines)}
    hanging = {line: verdict.text for line, verdict in outcomes.items() if verdict.outcome == "confirmed"}
    assert bool(hanging) == (name in TOLERATED), hanging


def tried(source: str, line: int) -> Verdict:
    return try_lines(analyse(index_source(source, "model.py")), [line])


RIGHT = {
    "both ways alike": "def f(rank):\n    if rank == 0:\n        dist.barrier()\n    else:\n        dist.barrier()\n",
    "broadcast": "def f(rank, step, last):\n    if rank == 0:\n        step = resume()\n    step = torch.tensor(step)\n"
    "    dist.broadcast(step, 0)\n    while step < last:\n        dist.barrier()\n        step += 1\n",
    "a shared flag": "def f(rank, debug):\n    if debug:\n        dist.barrier()\n"
    "    if debug and rank == 0:\n        show()\n",
    "reduced flag": "def f(loader, model):\n    for batch in loader:\n        bad = model(batch).isnan()\n"
    "        dist.all_reduce(bad)\n        if bad:\n            continue\n        dist.barrier()\n",
    "gathered": "def f(loader, accelerator):\n    for batch in loader:\n        both = accelerator.gather(batch)\n"
    "        if both.sum() > 0:\n            dist.barrier()\n",
}


@pytest.mark.parametrize("source", RIGHT.values(), ids=RIGHT)
def test_right_code_is_refuted(source: str) -> None:
    whole = f"import torch\nimport torch.distributed as dist\n{source}"
    line = 1 + max(number for number, text in enumerate(whole.splitlines()) if "barrier" in text)
    assert tried(whole, line).outcome == "refuted"


def test_nothing_outside_of_the_file_is_touched(tmp_path: Path) -> None:
    """Imports are never loaded, and files never opened: both are stand-ins."""
    target = tmp_path / "written"
    source = f"""\
import os, shutil, subprocess, pathlib
import torch.distributed as dist
from pathlib import Path
import no_such_module

def save(rank, path):
    import json
    open({str(target)!r}, "w").write("x")
    Path({str(target)!r}).write_text("x")
    os.system("touch {target}")
    subprocess.run(["touch", {str(target)!r}])
    no_such_module.prepare(json.dumps(path))
    if rank == 0:
        dist.barrier()
"""
    before = set(sys.modules)
    assert tried(source, 14).outcome == "confirmed"
    assert not target.exists()
    assert "no_such_module" not in set(sys.modules) - before


def test_code_that_cannot_be_run_is_said_to_be_so() -> None:
    source = "import torch.distributed as dist\ndef f(rank):\n    raise ValueError(3)\n    rank and dist.barrier()\n"
    verdict = tried(source, 4)
    assert verdict.outcome == "not runnable"
    assert "line 4 was reached in none of" in verdict.text
    assert "ValueError: 3" in verdict.text


def test_code_that_never_ends_comes_to_an_end() -> None:
    source = "import torch.distributed as dist\ndef f(x):\n    while x or True:\n        pass\n    dist.barrier()\n"
    assert tried(source, 5).outcome == "not runnable"


BAD = "import torch.distributed as dist\ndef f(rank):\n    if rank == 0:\n        dist.barrier()\n"


def test_the_command_says_what_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(BAD)
    assert main(["confirm", f"{path}:4"]) == 1
    out = capsys.readouterr().out
    assert "running the code around" in out
    assert f"{path}:4:9 DL101 confirmed: " in out
    assert "rank 1  the end" in out


def test_a_refuted_finding_and_one_that_cannot_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    path.write_text(BAD)
    for outcome, status in (("refuted", 0), ("not runnable", 2)):
        monkeypatch.setattr(command, "try_finding", lambda *args, outcome=outcome: Verdict(outcome, "so", 3))
        assert main(["confirm", f"{path}:4"]) == status
        assert f"DL101 {outcome}: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("{path}:3", "no finding of DL1"),
        ("{path}", "FILE:LINE"),
        ("{path}:", "FILE:LINE"),
        ("{path}.missing:3", "No such file"),
    ],
)
def test_mistakes_are_told(place: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(BAD)
    assert main(["confirm", place.format(path=path)]) == 2
    assert message in capsys.readouterr().err


def test_distmetrics_must_be_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    path.write_text(BAD)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["confirm", f"{path}:4"]) == 2
    assert "distmetrics, which is not installed" in capsys.readouterr().err


def test_check_never_runs_code(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"open({str(tmp_path / 'written')!r}, 'w').write('x')\n{BAD}")
    assert main(["check", "--isolated", "--no-cache", str(path)]) == 1
    assert not (tmp_path / "written").exists()
