"""Run the benchmark: ``python -m benchmarks.faults``.

python -m benchmarks.faults                                          # everything, to
benchmarks/results python -m benchmarks.faults --tools torch detail --faults kill-0     # a part;
its rows replace the old ones python -m benchmarks.faults --tools lightning --dry                  #
printed only
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.faults.catalogue import FAULTS, TOOLS, Fault, Tool
from benchmarks.faults.cell import ROOT, run
from benchmarks.faults.report import cell, merged, read, write
from benchmarks.faults.verdict import Row, judge

RESULTS = Path(__file__).parents[1] / "results"


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    ask.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    ask.add_argument(
        "--limit",
        type=float,
        default=20.0,
        help="seconds after the fault at which what is left hangs",
    )
    ask.add_argument(
        "--timeout", type=float, default=8.0, help="seconds of patience of every tool but the first"
    )
    ask.add_argument("--jobs", type=int, default=1, help="cells at a time")
    ask.add_argument("--dry", action="store_true", help="print, and write nothing")
    ask.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = ask.parse_args(words)
    if not 0 < args.timeout < args.limit:
        ask.error("a time-out must be shorter than the limit, or every wait is a hang")
    return args


def main() -> int:
    """Run, print, write; the exit code says whether every cell was measured."""
    args = options()
    asked = [(FAULTS[fault], TOOLS[tool]) for tool in args.tools for fault in args.faults]
    begun, known = time.monotonic(), facts_of_run(args)

    def one(pair: tuple[Fault, Tool]) -> Row:
        row = measure(*pair, args.limit, args.timeout)
        print(f"{row.tool:20} {row.fault:18} {cell(row)}", flush=True)
        return row

    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(one, asked))
    print(f"took {(time.monotonic() - begun) / 60:.0f} min")
    if not args.dry:
        old, facts = read(args.out)
        facts |= dict.fromkeys(args.tools, known)
        order = [tool for tool in TOOLS if tool in facts]
        write(merged(old, rows), {tool: facts[tool] for tool in order}, args.out)
    return int(any(row.outcome == "not measured" for row in rows))


def measure(fault: Fault, tool: Tool, limit: float, timeout: float) -> Row:
    """Run one cell and judge it."""
    return judge(
        fault, tool.name, run(fault, tool, limit, timeout), _places(fault, tool), limit, timeout
    )


def _places(fault: Fault, tool: Tool) -> list[tuple[str, int]]:
    """Return the lines of the rank at fault, if there is a program."""
    return fault.places(tool) if fault.expressible(tool) else []


def facts_of_run(args: argparse.Namespace) -> dict[str, str]:
    """Return what a reader must know of a run."""
    named = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(
        named, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    versions = {
        name: importlib.metadata.version(name) for name in ("torch", "torchmetrics", "lightning")
    }
    return {
        "Python": platform.python_version(),
        **versions,
        "commit": commit or "unknown",
        "limit": f"{args.limit:g} s",
        "patience": f"{args.timeout:g} s",
        "cores": str(os.cpu_count()),
        "cells at a time": str(args.jobs),
    }


if __name__ == "__main__":
    raise SystemExit(main())
