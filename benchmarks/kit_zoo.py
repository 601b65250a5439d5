"""False alarms and missed faults of the testing kit: its zoo of metrics, with many seeds.

Each mutant breaks one law, and the kit must name that law and no other. Each right metric breaks
none, and the kit must be silent. The zoo is in tests/testing/zoo; the tests judge it with two
seeds.

    python -m benchmarks.kit_zoo              # 20 seeds, table in benchmarks/results/kit_zoo.md
    python -m benchmarks.kit_zoo --only f1    # judge one anew, the others stay as they were
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tests.testing.zoo.base import judged
from tests.testing.zoo.mutants import MUTANTS
from tests.testing.zoo.right import RIGHT

RESULTS = Path(__file__).parent / "results"


def verdicts(job: tuple[str, int, int]) -> tuple[str, int, Counter[str], int]:
    """Judge one metric with every seed.

    Returns: its name, how many laws were judged, what was said how often, and how many runs.
    """
    name, seeds, examples = job
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # torcheval's, of ranks without data
    specimen = next(each for each in (*MUTANTS, *RIGHT) if each.name == name)
    said = Counter[str]()
    most = runs = 0
    for seed in range(seeds):
        report = judged(specimen, seed, examples)
        said[", ".join(violation.law.name for violation in report.violations)] += 1
        most = max(most, len(report.judged))
        runs += sum(report.judged.values())
    return name, most, said, runs


def row(specimen: Any, laws: int, said: Counter[str], runs: int) -> str:
    """Write a line of the table."""
    wanted = specimen.breaks.name if specimen.breaks else ""
    others = "; ".join(
        f"{text or 'nothing'} ({n} ×)" for text, n in said.most_common() if text != wanted
    )
    right = f"{said[wanted]} of {said.total()}"
    return f"| {specimen.name} | {wanted or '–'} | {laws} | {runs} | {right} | {others} |"


def page(found: dict[str, Any], examples: int) -> str:
    """Write the table of what was judged."""
    lines = [
        "# The zoo of the testing kit",
        "",
        f"`python -m benchmarks.kit_zoo`: {examples} drawn examples a metric and seed, on threads.",
        "A mutant is right if the law that it breaks is named and no other,",
        "another metric if nothing is said.",
    ]
    for title, specimens in (("Mutants", MUTANTS), ("Right metrics", RIGHT)):
        rows = [row(each, *found[each.name]) for each in specimens if each.name in found]
        right = sum(
            found[each.name][1][each.breaks.name if each.breaks else ""]
            for each in specimens
            if each.name in found
        )
        seeds = sum(found[each.name][1].total() for each in specimens if each.name in found)
        lines += [
            "",
            f"## {title}: {right} of {seeds} verdicts right, {len(rows)} metrics",
            "",
            "| metric | breaks | laws judged | judgements | right | what else was said |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Judge the zoo, print the table, write it."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--seeds", type=int, default=20)
    ask.add_argument("--examples", type=int, default=4)
    ask.add_argument("--jobs", type=int, default=1)
    ask.add_argument("--only", nargs="+")
    args = ask.parse_args()
    names = [each.name for each in (*MUTANTS, *RIGHT) if not args.only or each.name in args.only]
    known = RESULTS / "kit_zoo.json"
    found: dict[str, Any] = {}
    if args.only and known.exists():
        found = {
            name: [laws, Counter(said), runs]
            for name, (laws, said, runs) in json.loads(known.read_text()).items()
        }
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for name, laws, said, runs in pool.imap(
            verdicts, [(name, args.seeds, args.examples) for name in names]
        ):
            found[name] = [laws, said, runs]
            print(f"{names.index(name) + 1:3} of {len(names)}  {name}  {dict(said)}", flush=True)
    text = page(found, args.examples)
    print(text)
    known.write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "kit_zoo.md").write_text(text)


if __name__ == "__main__":
    main()
