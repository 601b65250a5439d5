"""The results: JSON for machines, one table to look at, and one with every figure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults.catalogue import FAULTS, TOOLS
from benchmarks.faults.verdict import End, Row
from distmetrics.errors import who

__all__ = ["cell", "markdown", "merged", "read", "write"]

_COUNTED = (
    "tool",
    "faults",
    "error or abort on all survivors",
    "of them within 1 s",
    "all errors name the rank",
    "the line",
    "wrong number given",
    "of them without any error",
    "a survivor hangs",
    "a process aborts",
    "every survivor leaves a report",
)
_FIGURES = (
    "fault",
    "tool",
    "first",
    "last",
    "names the rank",
    "the line",
    "wrong number",
    "hang",
    "abort",
    "report written by",
    "a survivor's words",
)
_LONG = 140  # characters of an error in the table


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Return all rows in the order of the catalogue, the new ones in place of the old."""
    rows = {(row.fault, row.tool): row for row in [*old, *new]}
    return [rows[fault, tool] for fault in FAULTS for tool in TOOLS if (fault, tool) in rows]


def read(folder: Path) -> tuple[list[Row], dict[str, dict[str, str]]]:
    """Return the rows of earlier runs, and the facts about the run of each tool."""
    path = folder / "faults.json"
    if not path.exists():
        return [], {}
    content = json.loads(path.read_text())
    rows = [Row(**{**row, "ends": [End(**end) for end in row["ends"]]}) for row in content["rows"]]
    return rows, content["facts"]


def write(rows: Sequence[Row], facts: Mapping[str, Mapping[str, str]], folder: Path) -> None:
    """Write ``faults.json`` and ``faults.md``."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"facts": facts, "rows": [asdict(row) for row in rows]}
    (folder / "faults.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "faults.md").write_text(markdown(rows, facts))


def cell(row: Row) -> str:
    """Say in a few words what became of a job."""
    if row.outcome in ("not expressible", "not measured"):
        return row.outcome
    if row.outcome == "right":
        return "right value"
    if row.outcome == "silent":
        return "**wrong number**, no error"
    hung = sum(end.how == "hang" for end in row.counted)
    aborts = [end for end in row.counted if end.how == "abort"]
    parts = []
    if row.wrong:
        parts.append("**wrong number**, then")
    if hung:
        whose = "" if hung == len(row.counted) else f"{hung} of {len(row.counted)} "
        parts.append(f"{whose}**hang** (> {row.limit:g} s)")
        if row.dumped:
            parts.append("; its dump of stacks has the line")
    if row.seconds:
        kinds = (
            "abort" if len(aborts) == len(row.seconds) else "abort and error" if aborts else "error"
        )
        parts.append(f"{'; ' if hung else ''}{kinds} {_span(row.seconds)} s{_named(row)}")
    return " ".join(parts).replace(" ;", ";")


def _span(seconds: Sequence[float]) -> str:
    first, last = f"{seconds[0]:.1f}", f"{seconds[-1]:.1f}"
    return first if first == last else f"{first}–{last}"


def _named(row: Row) -> str:
    """Say what the errors of those who did nothing wrong name."""
    said = [
        what if count == row.told else f"{what} ({count} of {row.told})"
        for what, count in (("rank", row.rank_named), ("line", row.line_named))
        if count
    ]
    return f", names {' and '.join(said)}" if said else ""


def markdown(rows: Sequence[Row], facts: Mapping[str, Mapping[str, str]]) -> str:
    """Tell it for reading."""
    tools = [tool for tool in TOOLS.values() if any(row.tool == tool.name for row in rows)]
    patience = rows[0].timeout if rows else 0.0
    parts = [
        "# What tools do when a job goes wrong",
        _INTRODUCTION,
        "\n".join(
            f"- **{tool.title}**: {tool.about.format(timeout=f'{patience:g}')}." for tool in tools
        ),
        _overview(rows),
        "## In numbers",
        _totals(rows),
        "## Every figure",
        _KEY,
        _details(rows),
        "## The runs",
        _runs(facts),
    ]
    return "\n\n".join(parts) + "\n"


def _runs(facts: Mapping[str, Mapping[str, str]]) -> str:
    """Say how the tools were run, those together that were run alike."""
    alike: dict[str, list[str]] = {}
    for tool, known in facts.items():
        said = ", ".join(f"{name} {value}" for name, value in known.items())
        alike.setdefault(said, []).append(TOOLS[tool].title)
    return "\n".join(f"- {'; '.join(titles)}: {said}" for said, titles in alike.items())


def _overview(rows: Sequence[Row]) -> str:
    tools = [name for name in TOOLS if any(row.tool == name for row in rows)]
    lines = [
        f"| fault | {' | '.join(TOOLS[name].title for name in tools)} |",
        "|---" * (1 + len(tools)) + "|",
    ]
    for fault in FAULTS.values():
        found = {row.tool: cell(row) for row in rows if row.fault == fault.name}
        if found:
            lines.append(
                f"| {fault.title} | {' | '.join(found.get(name, 'not run') for name in tools)} |"
            )
    return "\n".join(lines)


def _totals(rows: Sequence[Row]) -> str:
    """Count, for each tool, what became of the faults; what is no fault is left out."""
    lines = [
        f"| {' | '.join(_COUNTED)} |",
        "|---" * len(_COUNTED) + "|",
    ]
    for name, tool in TOOLS.items():
        mine = [
            row for row in rows if row.tool == name and row.ends and not FAULTS[row.fault].harmless
        ]
        if not mine:
            continue
        whole = [row for row in mine if row.seconds and len(row.seconds) == len(row.counted)]
        counts = [
            len(mine),
            len(whole),
            sum(row.seconds[-1] <= 1 for row in whole),
            sum(0 < row.told == row.rank_named for row in mine),
            sum(0 < row.told == row.line_named for row in mine),
            sum(row.wrong for row in mine),
            sum(row.outcome == "silent" for row in mine),
            sum(any(end.how == "hang" for end in row.counted) for row in mine),
            sum(any(end.how == "abort" for end in row.counted) for row in mine),
            sum({*(row.reported or ())}.issuperset(row.survivors) for row in mine),
        ]
        lines.append(f"| {tool.title} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def _details(rows: Sequence[Row]) -> str:
    lines = [
        f"| {' | '.join(_FIGURES)} |",
        "|---" * len(_FIGURES) + "|",
    ]
    for row in rows:
        ends = row.counted
        hung, told = sum(end.how == "hang" for end in ends), row.told
        first, last = (
            (f"{row.seconds[0]:.2f} s", f"{row.seconds[-1]:.2f} s") if row.seconds else ("–", "–")
        )
        aborts = ", ".join(end.text.partition(":")[0] for end in ends if end.how == "abort")
        cells = [
            row.fault,
            TOOLS[row.tool].title,
            first,
            f"> {row.limit:g} s" if hung else last,
            f"{row.rank_named} of {told}" if told else "–",
            f"{row.line_named} of {told}" if told else "–",
            "–"
            if not ends
            else "silent"
            if row.outcome == "silent"
            else "yes"
            if row.wrong
            else "no",
            f"{hung} of {len(ends)}" if ends else "–",
            aborts or ("no" if ends else "–"),
            _reported(row),
            _words(row),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _reported(row: Row) -> str:
    """Say which ranks left a report: not known of earlier runs, nor where nothing was run."""
    if row.reported is None or not row.ends:
        return "–"
    return who(row.reported) if row.reported else "none"


def _words(row: Row) -> str:
    """Quote an error, best of a rank that did nothing wrong, or say why there is none."""
    fault = FAULTS[row.fault]
    first = [row.ends[rank] for rank in [*fault.others, fault.wrong]] if row.ends else []
    texts = [end.text for end in first if end.how in ("error", "abort")]
    if not texts:
        return cell(row).replace("**", "")
    said = " ".join(texts[0].split()).replace("|", "\\|")
    return said if len(said) <= _LONG else said[: _LONG - 1] + "…"


_INTRODUCTION = """\
Real processes over gloo on one machine: 2 ranks, or 3 where one of them is lost. No agent such as
torchrun's watches over them. Each fault is the same program for every tool, but for Lightning,
whose own calls are used.

- Seconds are from the fault to the error on the first and on the last *survivor*: a rank that the
  fault has not taken away. All tools but the first have the same patience. A signal is sent when
  the others wait for half a second.
- *hang*: a survivor has neither raised nor ended when the limit is over.
- *wrong number*: a call returned what is not the right value, whatever happened later.
- *names rank*, *names line*: the text of the error, on ranks that did nothing wrong, has the
  number of the rank that did, or file and line of what that rank did. A rank's own traceback,
  which has the line where it waits itself, is not counted.
- *report written by*: the ranks that left a file of what they did last (`DISTMETRICS_REPORT`),
  which no other tool writes by default."""
_KEY = (
    "*first* and *last*: seconds from the fault to the first and to the last error or abort among "
    "the survivors."
)
