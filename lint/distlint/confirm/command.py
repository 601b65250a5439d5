"""The command ``distlint confirm``."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from distlint.analysis.interpreter import analyse
from distlint.confirm.search import Verdict, try_finding
from distlint.engine import check_source
from distlint.model import Finding
from distlint.modules import module_key
from distlint.rules import RULES
from distlint.syntax import index_source
from distlint.text import Text

CONFIRMED, REFUTED, NOT_RUNNABLE = 1, 0, 2
_MOST_ANSWERS = 8


class ConfirmError(Exception):
    """What was asked for makes no sense; the message says why."""


def confirm(args: argparse.Namespace) -> int:
    """``distlint confirm FILE:LINE``: run the code around a finding; the exit status."""
    path, line = _place(args.place)
    if importlib.util.find_spec("distmetrics") is None:
        raise ConfirmError("confirm runs code under the guard of distmetrics, which is not installed: pip install .")
    source = Path(path).read_bytes()
    found = findings(source, path, line)
    if not found:
        raise ConfirmError(f"no finding of DL1 in {path}, line {line}: `distlint check --select DL1 {path}` lists them")
    sys.stdout.write(f"running the code around {path}:{line} as two ranks, with stand-ins for all that it imports\n")
    analysis = analyse(index_source(Text.decode(source).text, path, module_key(path)))
    verdicts = [(each, try_finding(analysis, each)) for each in found]
    for each, verdict in verdicts:
        sys.stdout.write(described(each, verdict))
    outcomes = {verdict.outcome for _, verdict in verdicts}
    if "confirmed" in outcomes:
        return CONFIRMED
    return REFUTED if outcomes == {"refuted"} else NOT_RUNNABLE


def findings(source: bytes, path: str, line: int | None = None) -> list[Finding]:
    """Findings of the rules about hangs in a file, or in a line of it."""
    rules = [rule for code, rule in RULES.items() if code.startswith("DL1")]
    return [
        each
        for each in check_source(source, path, rules)
        if each.code.startswith("DL1") and (line is None or each.line <= line <= each.end_line)
    ]


def _place(text: str) -> tuple[str, int]:
    path, _, line = text.rpartition(":")
    if not path or not line.isdecimal():
        raise ConfirmError(f"say which finding by FILE:LINE, such as src/train.py:41; got {text}")
    return path, int(line)


def described(found: Finding, verdict: Verdict) -> str:
    """Return what to print of a verdict."""
    lines = [f"{found.path}:{found.line}:{found.column} {found.code} {verdict.outcome}: {found.message}"]
    lines += [f"  {line}" for line in verdict.text.splitlines()]
    shown = [each for each in verdict.answers if each.line][:_MOST_ANSWERS]
    if shown:
        lines.append("  with these answers:")
    for each in shown:
        answer = str(each.answer) if each.text.startswith("turns of") else "yes" if each.answer else "no"
        lines.append(f"    line {each.line}: {' '.join(each.text.split())}: {answer}")
    return "\n".join(lines) + "\n"
