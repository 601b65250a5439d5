"""Run the benchmark: ``python -m benchmarks.faults``.

python -m benchmarks.faults                                          # everything, to results/
python -m benchmarks.faults --tools torch detail --faults kill-0     # a part; replaces its rows
python -m benchmarks.faults --tools lightning --dry                  # printed only
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.common import RESULTS, parser, versions
from benchmarks.faults.catalogue import FAULTS, TOOLS
from benchmarks.faults.cell import run
from benchmarks.faults.report import Row, cell, judge, merged, read, write


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    ask = parser(__doc__)
    ask.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    ask.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    ask.add_argument("--limit", type=float, default=20.0, help="seconds after which a rank hangs")
    ask.add_argument("--timeout", type=float, default=8.0, help="patience of all but the first")
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
    asked = [(fault, tool) for tool in args.tools for fault in args.faults]
    begun = time.monotonic()

    def one(pair: tuple[str, str]) -> Row:
        row = measure(*pair, args.limit, args.timeout)
        print(f"{row.tool:20} {row.fault:18} {cell(row)}", flush=True)
        return row

    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(one, asked))
    print(f"took {(time.monotonic() - begun) / 60:.0f} min")
    if not args.dry:
        known = versions("torchmetrics", "lightning")
        known |= {"limit": f"{args.limit:g} s", "patience": f"{args.timeout:g} s"}
        known |= {"cores": str(os.cpu_count()), "cells at a time": str(args.jobs)}
        write(merged(read(args.out), rows), known, args.out)
    return int(any(row.outcome == "not measured" for row in rows))


def measure(fault: str, tool: str, limit: float, timeout: float) -> Row:
    """Run one cell and judge it."""
    return judge(FAULTS[fault], tool, run(FAULTS[fault], tool, limit, timeout))


if __name__ == "__main__":
    raise SystemExit(main())
