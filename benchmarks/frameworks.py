"""Evaluations under Accelerate, Fabric, Lightning and Hugging Face against one process.

    python -m benchmarks.frameworks                    # all, and write the results
    python -m benchmarks.frameworks --frameworks fabric --world-sizes 2 3

Results of a part are written with ``--results FOLDER`` alone.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path

from benchmarks.common import RESULTS, parser, table, versions
from benchmarks.frameworks_cases import (
    FRAMEWORKS,
    LENGTHS,
    WORLDS,
    Outcome,
    evaluated,
    kind_of,
)

PACKAGES = ("torchmetrics", "accelerate", "lightning", "transformers")
_SUMMARY = (
    *("framework", "ranks", "cases", "distmetrics wrong", "alone wrong", "of them an error"),
    *("a count", "F1", "loss", "naive repeats", "warned, right number", "not warned"),
    *("wrong or false warning", "distmetrics warned"),
)
_PARTS = (
    *("framework", "ranks", "program", "data", "cases", "alone wrong", "naive repeats"),
    *("warned", "not warned", "for example"),
)
_BAD = ("framework", "ranks", "wrong with distmetrics", "samples", "values")
_NOTE = """\
*Alone wrong*: cases in which a count, F1 or the loss with the framework alone is not one process's;
a count must be equal, the rest to 1e-6. *Naive*: a metric fed from the framework's loader and then
synced by distmetrics; warnings are judged there. *Not warned*: it repeats and nothing was said."""


def summary(done: list[Outcome]) -> list[str]:
    """Return the line of a framework and a number of ranks."""
    kinds: Counter[str] = Counter()
    for each in done:
        if not each.framework.error:
            kinds.update({kind_of(name) for name in each.wrong(each.framework)})
    warnings = Counter(each.warning for each in done)
    figures = [
        len(done),
        sum(bool(each.ours_wrong) for each in done),
        sum(bool(each.wrong(each.framework)) for each in done),
        sum(bool(each.framework.error) for each in done),
        kinds["count"],
        kinds["f1"],
        kinds["loss"],
        sum(each.repeated > 0 for each in done),
        warnings["right"],
        warnings["missed"],
        warnings["wrong number"] + warnings["false"],
        sum(each.false_warnings for each in done),
    ]
    case = done[0].case
    return [case.framework, *map(str, [case.world_size, *figures])]


def parts(done: list[Outcome]) -> list[list[str]]:
    """Return a line for each program and kind of data that is wrong alone, or repeats."""
    by: dict[tuple[str, str], list[Outcome]] = {}
    for each in done:
        by.setdefault((each.case.program, each.case.data), []).append(each)
    lines = []
    for part in by.values():
        wrong = [each for each in part if each.wrong(each.framework)]
        repeats = sum(each.repeated > 0 for each in part)
        if not wrong and not repeats:
            continue
        warned = [sum(each.warning == how for each in part) for how in ("right", "missed")]
        case, figures = part[0].case, [len(part), len(wrong), repeats, *warned]
        example = _told(wrong[-1]) if wrong else ""
        names = [case.framework, case.world_size, case.program, case.data]
        lines.append([*map(str, names + figures), example])
    return lines


def _told(outcome: Outcome) -> str:
    """Return what is wrong with a framework alone, as a cell of a table."""
    case, seen = outcome.case, outcome.framework
    where = f"{case.length}, batches of {case.batch_size}: "
    names = outcome.wrong(seen)
    values = [
        f"{name} {seen.values.get(name, 0):.7g} for {outcome.single[name]:.7g}" for name in names
    ]
    return where + (seen.error.replace("|", "/") or ", ".join(values))


def bad(done: list[Outcome]) -> list[list[str]]:
    """Return a line for each case that is wrong with distmetrics, or warned of there."""
    lines = []
    for each in done:
        if each.ours_wrong or each.false_warnings:
            case = each.case
            name = f"{case.program}, {case.length}, batches of {case.batch_size}, {case.data}"
            ours = f"{each.ours[0].values} for {each.single}, {each.false_warnings} warnings"
            lines.append([case.framework, str(case.world_size), name, str(case.samples), ours])
    return lines


def markdown(worlds: list[list[Outcome]], known: str) -> str:
    """Return the page."""
    whole, by_part, wrong = (
        table(head, sorted(lines, key=lambda line: (line[0], line[1])))
        for head, lines in (
            (_SUMMARY, [summary(done) for done in worlds]),
            (_PARTS, [line for done in worlds for line in parts(done)]),
            (_BAD, [line for done in worlds for line in bad(done)]),
        )
    )
    title = ["# Frameworks", f"`python -m benchmarks.frameworks`; {known}.", whole, _NOTE]
    body = ["## What is wrong alone, or repeats", by_part, "## What is wrong with distmetrics"]
    return "\n\n".join([*title, *body, wrong]) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Run the evaluations, write them and print the summary."""
    ask = parser(__doc__)
    ask.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    ask.add_argument("--world-sizes", nargs="+", type=int, choices=WORLDS, default=WORLDS)
    ask.add_argument("--lengths", nargs="+", choices=LENGTHS, default=LENGTHS)
    ask.add_argument("--results", type=Path, help="folder; by default that of a whole run")
    chosen = ask.parse_args(arguments)
    worlds = []
    for name, world_size in itertools.product(chosen.frameworks, chosen.world_sizes):
        start = time.monotonic()
        done = [*evaluated(name, world_size, chosen.lengths)]
        if done:
            worlds.append(done)
            print(", ".join(summary(done)), f"{time.monotonic() - start:.0f} s", flush=True)
    known = ", ".join(f"{name} {found}" for name, found in versions(*PACKAGES).items())
    is_whole = chosen == ask.parse_args([])
    if is_whole or chosen.results:
        folder = chosen.results or RESULTS
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "frameworks.md").write_text(markdown(worlds, known))
    print(table(_SUMMARY, [summary(done) for done in worlds]))


if __name__ == "__main__":
    main()
