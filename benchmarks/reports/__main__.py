"""Run the reports: in the way of their threads, with distmetrics, and in one process.

python -m benchmarks.reports                     # all; writes results/reports.csv
python -m benchmarks.reports --only torchmetrics # those whose thread matches; writes their rows
"""

from __future__ import annotations

import argparse
import csv
import re
from pathlib import Path

from benchmarks.reports import look, reports, warm

RESULTS = Path(__file__).parents[1] / "results" / "reports.csv"
COLUMNS = ("thread", "date", "symptom", "naive", "ours", "right", "first", "now", "said")
Rows = dict[str, dict[str, str]]


def kept() -> Rows:
    """Return the rows that were written, by their threads."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="") as file:
        return {row["thread"]: row for row in csv.DictReader(file)}


def main() -> int:
    """Run and write; the exit code says whether none is silent."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--only", default="")
    only = ask.parse_args().only
    rows = kept()
    warm()
    for report in reports().values():
        if not re.search(only, report.THREAD):
            continue
        seen = look(report)
        # ``first`` keeps the verdict of the first run, before anything was mended
        first = rows.get(report.THREAD, {}).get("first", seen.verdict)
        rows[report.THREAD] = {
            "thread": report.THREAD,
            "date": report.DATE,
            "symptom": report.SYMPTOM,
            "naive": seen.naive,
            "ours": seen.ours,
            "right": seen.right,
            "first": first,
            "now": seen.verdict,
            "said": seen.said,
        }
        print(
            f"{report.THREAD}: naive {seen.naive}, ours {seen.ours}, right {seen.right}: "
            f"{seen.verdict}. {seen.said}",
            flush=True,
        )
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows[thread] for thread in sorted(rows))
    return 1 if any(row["now"] in ("silent", "hangs") for row in rows.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
