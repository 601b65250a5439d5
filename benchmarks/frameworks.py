"""Evaluations under Accelerate, Fabric, Lightning and Hugging Face against one process.

    python -m benchmarks.frameworks                    # all, and write the results
    python -m benchmarks.frameworks --frameworks fabric --world-sizes 2 3

What is run replaces what the results have of the same framework and number of ranks.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import time
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.frameworks_cases import LENGTHS, WORLDS, Outcome, kind_of

RESULTS = Path(__file__).parent / "results"
FRAMEWORKS = {
    "accelerate": "accelerate",
    "fabric": "lightning",
    "lightning": "lightning",
    "hf": "transformers",
}
_HEAD = (
    "framework",
    "ranks",
    "cases",
    "distmetrics wrong",
    "alone wrong",
    "of them an error",
    "a count",
    "F1",
    "loss",
    "naive repeats",
    "warned, right number",
    "not warned",
    "wrong or false warning",
    "distmetrics warned",
)
_NOTE = """\
*Alone wrong*: cases in which a count, F1 or the loss with the framework alone is not one process's;
a count must be equal, the rest to 1e-6. *Naive*: a metric fed from the framework's loader and then
synced by distmetrics; warnings are judged there. *Not warned*: it repeats and nothing was said."""
Row = dict[str, Any]


def row_of(outcome: Outcome) -> Row:
    """Return an outcome as it is written."""
    case = outcome.case
    return {
        **case._asdict(),
        "single": outcome.single,
        "ours": outcome.ours[0].values,
        "ours_wrong": outcome.ours_wrong,
        "ours_warned": outcome.false_warnings,
        "alone": outcome.framework.values,
        "alone_error": outcome.framework.error,
        "alone_wrong": outcome.wrong(outcome.framework),
        "repeated": outcome.repeated,
        "warning": outcome.warning,
    }


def evaluate(names: Iterable[str], world_sizes: Iterable[int], lengths: Iterable[str]) -> list[Row]:
    """Return the rows of all evaluations that are asked for."""
    rows = []
    for name in names:
        part = importlib.import_module(f"benchmarks.frameworks_{name}")
        for world_size in world_sizes:
            start = time.monotonic()
            cases = [case for case in part.all_cases(world_size) if case.length in set(lengths)]
            if not cases:
                continue
            done = [row_of(outcome) for outcome in part.cases(cases)]
            rows += done
            wrong = sum(bool(row["ours_wrong"]) for row in done)
            seconds = time.monotonic() - start
            print(f"{name} W={world_size}: {len(done)} cases, {wrong} wrong, {seconds:.0f} s")
    return rows


def summary(rows: list[Row]) -> list[list[str]]:
    """Return the lines of the table, one for each framework and number of ranks."""
    lines = [list(_HEAD)]
    for framework, world_size in dict.fromkeys((r["framework"], r["world_size"]) for r in rows):
        part = [r for r in rows if (r["framework"], r["world_size"]) == (framework, world_size)]
        kinds: Counter[str] = Counter()
        for row in part:
            if row["alone_error"]:
                continue
            kinds.update({kind_of(name) for name in row["alone_wrong"]})
        warnings = Counter(row["warning"] for row in part)
        figures = [
            len(part),
            sum(bool(row["ours_wrong"]) for row in part),
            sum(bool(row["alone_wrong"]) for row in part),
            sum(bool(row["alone_error"]) for row in part),
            kinds["count"],
            kinds["f1"],
            kinds["loss"],
            sum(row["repeated"] > 0 for row in part),
            warnings["right"],
            warnings["missed"],
            warnings["wrong number"] + warnings["false"],
            sum(row["ours_warned"] for row in part),
        ]
        lines.append([framework, *map(str, [world_size, *figures])])
    return lines


def markdown(rows: list[Row], versions: str) -> str:
    """Return the summary and a table of all cases."""
    cases = [["case", "samples", "one process", "distmetrics", "alone", "naive repeats", "warning"]]
    for row in rows:
        name = f"{row['framework']}, {row['program']}, {row['world_size']} ranks, "
        name += f"{row['length']}, batches of {row['batch_size']}, {row['data']}"
        values = [_text(row["single"]), _text(row["ours"], row["ours_wrong"])]
        alone = _text(row["alone"], row["alone_wrong"])
        values.append(f"**{row['alone_error']}**" if row["alone_error"] else alone)
        cases.append([name, str(row["samples"]), *values, str(row["repeated"]), row["warning"]])
    parts = [
        "# Frameworks",
        f"`python -m benchmarks.frameworks`; {versions}.",
        _table(summary(rows)),
        _NOTE,
        "## Every case",
        "Wrong values are bold.",
        _table(cases),
    ]
    return "\n\n".join(parts) + "\n"


def _text(values: dict[str, float], wrong: Iterable[str] = ()) -> str:
    """Return values as a cell of a table."""
    parts = []
    for name, value in values.items():
        text = f"{name} {value:.7g}"
        parts.append(f"**{text}**" if name in wrong else text)
    return ", ".join(parts)


def _table(lines: list[list[str]]) -> str:
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, "|---" * len(lines[0]) + "|", *body])


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """Return old rows but for those of the frameworks and worlds that are new, and the new ones."""
    replaced = {(row["framework"], row["world_size"]) for row in new}
    kept = [row for row in old if (row["framework"], row["world_size"]) not in replaced]
    return sorted(kept + new, key=lambda row: (row["framework"], row["world_size"]))


def write(rows: list[Row], folder: Path) -> None:
    """Write the rows beside what is there, and the tables of all."""
    file = folder / "frameworks.json"
    old = json.loads(file.read_text())["rows"] if file.exists() else []
    rows = merged(old, rows)
    packages = ("torch", "torchmetrics", *dict.fromkeys(FRAMEWORKS.values()))
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    versions += f", Python {platform.python_version()}"
    lines = ",\n".join(json.dumps(row) for row in rows)
    file.write_text(f'{{"versions": {json.dumps(versions)}, "rows": [\n{lines}\n]}}\n')
    (folder / "frameworks.md").write_text(markdown(rows, versions))


def main(arguments: list[str] | None = None) -> None:
    """Run the evaluations, write them and print the summary."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    parser.add_argument("--world-sizes", nargs="+", type=int, choices=WORLDS, default=WORLDS)
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=LENGTHS)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to")
    chosen = parser.parse_args(arguments)
    rows = evaluate(chosen.frameworks, chosen.world_sizes, chosen.lengths)
    write(rows, chosen.results)
    print(_table(summary(rows)))


if __name__ == "__main__":
    main()
