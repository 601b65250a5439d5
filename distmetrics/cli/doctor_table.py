"""What ``doctor`` found, as a table, as lines and as JSON."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from distmetrics.cli.doctor_finding import Finding, failed
from distmetrics.errors import who

_WIDE = 120  # a log file has no edge
_COLOUR = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def show(findings: Sequence[Finding]) -> None:
    """Print a table, or plain lines where rich is not installed, and how it came out."""
    if importlib.util.find_spec("rich") is None:
        print("\n".join(lines(findings)))  # noqa: T201
    else:
        _show_table(findings)
    print(summary(findings), flush=True)  # noqa: T201


def _show_table(findings: Sequence[Finding]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for heading in ("", "check"):
        table.add_column(heading, no_wrap=True)
    table.add_column("found")
    for finding in findings:
        colour = _COLOUR[finding.status]
        do = f"\n[bold]Do:[/] {escape(finding.do)}" if finding.do else ""
        table.add_row(f"[{colour}]{finding.status}[/]", finding.name, escape(_found(finding)) + do)
    console.print(table)


def lines(findings: Sequence[Finding]) -> list[str]:
    """Write one finding a line, with further lines below it.

    >>> lines([Finding("open files", "warn", "256", "ulimit -n 65536", (1,))])
    ['warn  open files     rank 1: 256', '                      Do: ulimit -n 65536']
    """
    written = []
    for finding in findings:
        first, *more = [
            *_found(finding).split("\n"),
            *([f"Do: {finding.do}"] if finding.do else []),
        ]
        written.append(f"{finding.status:<4}  {finding.name:<14} {first}")
        written += [f"{'':<22}{line}".rstrip() for line in more]
    return written


def _found(finding: Finding) -> str:
    told_apart = finding.ranks and not (finding.status == "ok" and "\n" in finding.found)
    return f"{who(finding.ranks)}: {finding.found}" if told_apart else finding.found


def complain(rank: int, findings: Sequence[Finding]) -> None:
    """Write what is wrong on a rank that nobody else can speak for."""
    bad = [finding for finding in findings if finding.status != "ok"]
    text = "\n".join([f"distmetrics doctor, rank {rank}:", *lines(bad)])
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def summary(findings: Sequence[Finding]) -> str:
    """Count what was found.

    >>> summary([Finding("a", "ok", ""), Finding("b", "fail", ""), Finding("c", "warn", "")])
    '1 check failed, 1 warning, 1 ok.'
    """
    counts = {status: sum(finding.status == status for finding in findings) for status in _COLOUR}
    checks = f"{counts['fail'] or 'no'} check{'s' * (counts['fail'] != 1)} failed"
    return f"{checks}, {counts['warn'] or 'no'} warning{'s' * (counts['warn'] != 1)}, {counts['ok']} ok."


def as_json(findings: Sequence[Finding], *, launcher: str, world_size: int) -> str:
    """Write what was found for machines."""
    found: dict[str, Any] = {
        "ok": not failed(findings),
        "launcher": launcher,
        "world_size": world_size,
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(found, indent=1)
