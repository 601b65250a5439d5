"""Run the benchmark: ``python -m benchmarks.conformance``.

It needs the extra ``bench-conformance``.

python -m benchmarks.conformance                                 # everything, to benchmarks/results
python -m benchmarks.conformance --only 'AUROC|Retrieval'        # a part, printed only
python -m benchmarks.conformance --backend gloo --sample 60      # do threads and processes agree?
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.conformance.absent import absent
from benchmarks.conformance.case import LAYOUTS, Case
from benchmarks.conformance.catalogue import cases
from benchmarks.conformance.causes import is_possible
from benchmarks.conformance.measure import Plan, measure
from benchmarks.conformance.report import Report, counts, disagreements
from benchmarks.conformance.verdict import Row

RESULTS = Path(__file__).parents[1] / "results"


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument(
        "--only", default="", help="run the cases whose name matches this regular expression"
    )
    ask.add_argument("--world-sizes", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    ask.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    ask.add_argument(
        "--backend",
        choices=["threads", "gloo"],
        default="threads",
        help="gloo: the sample, and no peer",
    )
    ask.add_argument(
        "--sample",
        type=int,
        default=60,
        help="classes that distmetrics also syncs on gloo, 3 ranks",
    )
    ask.add_argument("--no-peer", action="store_true", help="leave torchmetrics' own sync out")
    ask.add_argument(
        "--epochs",
        type=int,
        default=1,
        help="fill, sync, compute and reset as often; every value counts",
    )
    ask.add_argument("--limit", type=float, default=20.0, help="seconds after which a case hangs")
    ask.add_argument("--jobs", type=int, default=1, help="cases at a time")
    ask.add_argument(
        "--out",
        type=Path,
        help=f"folder of the results; default {RESULTS.name}/ if everything is run",
    )
    return ask.parse_args(words)


def spread(names: Sequence[str], count: int) -> frozenset[str]:
    """Choose one construction each of ``count`` classes, evenly over the catalogue."""
    firsts = list({name.partition("[")[0]: name for name in reversed(names)}.values())[::-1]
    count = min(count, len(firsts))
    return frozenset(firsts[index * len(firsts) // count] for index in range(count))


def main() -> int:
    """Run, print, write; the exit code says whether distmetrics was right wherever it can be."""
    args = options()
    chosen = [case for name, case in cases().items() if re.search(args.only, name)]
    sample = spread([case.name for case in chosen], args.sample)
    if args.backend == "gloo":
        chosen = [case for case in chosen if case.name in sample]
    sizes = [] if args.backend == "gloo" else args.world_sizes
    peer = args.backend == "threads" and not args.no_peer
    plan = Plan(sizes, args.layouts, peer, sample, [3], args.limit, args.epochs)
    start = time.monotonic()
    rows, missing = _run(chosen, plan, args.jobs)
    took = time.monotonic() - start
    report = Report(rows, absent() | missing, facts("benchmarks.conformance", took))
    if args.out or args == options(
        ["--jobs", str(args.jobs)]
    ):  # a part does not replace the results of the whole
        report.write(args.out or RESULTS)
    return _summary(report, took)


def _run(chosen: Sequence[Case], plan: Plan, jobs: int) -> tuple[list[Row], dict[str, str]]:
    """Run the cases; return the rows, and the classes that cannot be constructed here."""
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for number, (case, found, why) in enumerate(measure(chosen, plan, jobs), 1):
        rows += found
        if why:
            missing[case.name] = why
        words = [
            f"{library}: {_tally(found, library)}" for library in ("distmetrics", "torchmetrics")
        ]
        print(f"{number:4} of {len(chosen)}  {case.name:48} {why or '   '.join(words)}", flush=True)
    return rows, missing


def _tally(rows: Sequence[Row], library: str) -> str:
    found = counts(row for row in rows if row.package == library)
    return ", ".join(f"{n} {verdict}" for verdict, n in found.items() if n) or "–"


def facts(module: str, took: float) -> dict[str, str]:
    """Return what a reader must know of a run: command, versions, machine and duration."""
    words = ["python", "-m", module, *sys.argv[1:]]
    return {
        "command": f"`{shlex.join(words)}`",
        "versions": ", ".join([f"Python {platform.python_version()}", *_versions()]),
        "machine": f"{os.cpu_count()} cores",
        "duration": f"{took / 60:.0f} min",
    }


def _versions() -> Iterator[str]:
    """Yield the packages that the values depend on, as far as they are installed."""
    for name in (
        "torch",
        "torchmetrics",
        "numpy",
        "scipy",
        "torchvision",
        "pycocotools",
        "pesq",
        "pystoi",
        "vmaf-torch",
    ):
        with contextlib.suppress(PackageNotFoundError):  # its classes are among those not run
            yield f"{name} {version(name)}"


def _summary(report: Report, took: float) -> int:
    """Print the totals and what is not right; return the exit code."""
    for library in ("distmetrics", "torchmetrics"):
        found = [row for row in report.rows if row.package == library]
        print(f"{library}: {_tally(found, library)}, {len({row.kind for row in found})} classes")
    bad = [row for row in report.rows if row.package == "distmetrics" and row.verdict != "ok"]
    mendable = [row for row in bad if is_possible(row.kind)]
    for row in mendable:
        print(
            f"  {row.verdict:6} {row.name}, {row.transport}, W = {row.world_size}, "
            f"{row.layout}: {row.detail}"
        )
    apart = disagreements(report.rows)
    print(f"threads and gloo disagree {len(apart)} times", *apart, sep="\n  ")
    print(f"took {took:.0f} s")
    return 1 if mendable or apart else 0


if __name__ == "__main__":
    raise SystemExit(main())
