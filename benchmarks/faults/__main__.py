"""Run the benchmark: ``python -m benchmarks.faults``.

python -m benchmarks.faults                                          # everything, to results/
python -m benchmarks.faults --tools torch detail --faults kill-0     # a part; replaces its rows
python -m benchmarks.faults --tools lightning --dry                  # printed only
"""

from __future__ import annotations

import os
import time

from benchmarks.common import RESULTS, parser, versions
from benchmarks.faults.catalogue import FAULTS, TOOLS
from benchmarks.faults.cell import run
from benchmarks.faults.report import Row, cell, judge, merged, read, write

LIMIT = 20.0  # seconds after the fault at which what is left hangs
PATIENCE = 8.0  # seconds, of every tool but the first


def main() -> int:
    """Run, print, write; the exit code says whether every cell was measured."""
    ask = parser(__doc__)
    ask.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    ask.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    ask.add_argument("--dry", action="store_true", help="print, and write nothing")
    args = ask.parse_args()
    asked = [(fault, tool) for tool in args.tools for fault in args.faults]
    begun = time.monotonic()

    rows = []
    for fault, tool in asked:
        rows.append(measure(fault, tool, LIMIT, PATIENCE))
        print(f"{tool:20} {fault:18} {cell(rows[-1])}", flush=True)
    print(f"took {(time.monotonic() - begun) / 60:.0f} min")
    if not args.dry:
        known = versions("torchmetrics", "lightning")
        known |= {"limit": f"{LIMIT:g} s", "patience": f"{PATIENCE:g} s"}
        known["cores"] = str(os.cpu_count())
        write(merged(read(RESULTS), rows), known, RESULTS)
    return int(any(row.outcome == "not measured" for row in rows))


def measure(fault: str, tool: str, limit: float, timeout: float) -> Row:
    """Run one cell and judge it."""
    return judge(FAULTS[fault], tool, run(FAULTS[fault], tool, limit, timeout))


if __name__ == "__main__":
    raise SystemExit(main())
