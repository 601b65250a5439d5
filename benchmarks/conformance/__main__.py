"""Run the benchmark: ``python -m benchmarks.conformance``.

It needs the extra ``bench-conformance``.

python -m benchmarks.conformance                                 # everything, to benchmarks/results
python -m benchmarks.conformance --only 'AUROC|Retrieval'        # a part, printed only
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence

from benchmarks.common import RESULTS, facts, parser
from benchmarks.conformance.case import Case
from benchmarks.conformance.catalogue import absent, cases
from benchmarks.conformance.pool import Plan, measure
from benchmarks.conformance.report import Row, counts, disagreements, is_possible, write

PACKAGES = ("numpy", "scipy", "torchvision", "pycocotools", "pesq", "pystoi", "vmaf-torch")


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    ask = parser(__doc__)
    ask.add_argument("--only", default="", help="cases whose name matches this regular expression")
    ask.add_argument("--world-sizes", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    ask.add_argument("--sample", type=int, default=60, help="classes that are run on gloo too")
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
    plan = Plan(args.world_sizes, sample)
    start = time.monotonic()
    rows, missing = _run(chosen, plan)
    took = time.monotonic() - start
    if args == options([]):  # a part does not replace the results of the whole
        said = facts("benchmarks.conformance", took, *PACKAGES)
        write(rows, absent() | missing, said, RESULTS)
    return _summary(rows, took)


def _run(chosen: Sequence[Case], plan: Plan) -> tuple[list[Row], dict[str, str]]:
    """Run the cases; return the rows, and the classes that cannot be constructed here."""
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for number, (case, found, why) in enumerate(measure(chosen, plan), 1):
        rows += found
        if why:
            missing[case.name] = why
        said = why or f"{_tally(found, 'distmetrics')}   {_tally(found, 'torchmetrics')}"
        print(f"{number:4} of {len(chosen)}  {case.name:48} {said}", flush=True)
    return rows, missing


def _tally(rows: Sequence[Row], library: str) -> str:
    found = counts(row for row in rows if row.package == library)
    said = ", ".join(f"{n} {verdict}" for verdict, n in found.items() if n)
    return f"{library}: {said or '–'}"


def _summary(rows: Sequence[Row], took: float) -> int:
    """Print the totals and what is not right; return the exit code."""
    for library in ("distmetrics", "torchmetrics"):
        kinds = {row.kind for row in rows if row.package == library}
        print(f"{_tally(rows, library)}, {len(kinds)} classes")
    bad = [row for row in rows if row.package == "distmetrics" and row.verdict != "ok"]
    mendable = [row for row in bad if is_possible(row.kind)]
    for row in mendable:
        where = f"{row.transport}, W = {row.world_size}, {row.layout}"
        print(f"  {row.verdict:6} {row.name}, {where}: {row.detail}")
    apart = disagreements(rows)
    print(f"threads and gloo disagree {len(apart)} times", *apart, sep="\n  ")
    print(f"took {took:.0f} s")
    return 1 if mendable or apart else 0


if __name__ == "__main__":
    raise SystemExit(main())
