"""What became of a job, judged from what its ranks told; and the tables. No process is started.

``faults.csv`` has a line a cell, which later runs replace; ``faults.md`` has the tables.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import table
from benchmarks.faults.catalogue import FAULTS, TOOLS, Fault, title
from benchmarks.faults.cell import ROOT, Run

# One rank or several: as in "Ranks 1, 2", as in "ranks 0-1 and 3", as in "[rank1]"
_RANKS = re.compile(
    r"\branks?[ :=]{0,2}(\d+(?:(?:, | ?and |-| - |–)\d+)*)(?!\d|\.\d)", re.IGNORECASE
)
_PART = re.compile(r"(\d+)(?:(?:-| - |–)(\d+))?")
# Where something lies on this machine, gloo's own source line, and a peer's port.
_PLACE = re.compile(
    rf"{re.escape(str(ROOT))}/|\[(?:enforce fail at )?/[^\]]*\] ?| ?\[[\d.:]+\]:\d+"
)
_WORDS, _LONG = 600, 140  # characters of what an aborted process wrote; of an error as it is kept


class End(NamedTuple):
    """How one rank ended."""

    how: str  # "error", "abort", "hang" or "done"; "lost" for the rank that the fault took away
    seconds: float = 0.0  # from the fault to the end
    text: str = ""  # of the error, or the end of what an aborted process wrote
    wrong: bool = False  # whether a value was not what it should have been


@dataclass(frozen=True)
class Row:
    """One fault with one tool."""

    fault: str  # its name
    tool: str  # its name
    outcome: str  # "right", "silent", "error", "abort", "hang", "not expressible" or "not measured"
    survivors: int = 0  # how many ranks count
    # seconds to the first and the last error or abort among them; "" without one
    first: float | str = ""
    last: float | str = ""
    ended: int = 0  # how many of them ended with an error or an abort
    hung: int = 0  # how many of them hang
    aborted: int = 0  # how many of them were aborted
    wrong: bool = False  # whether a program was given a wrong number, whatever happened later
    told: int = 0  # how many of the ranks that did nothing wrong ended with an error
    rank_named: int = 0  # how many of those name the rank that did
    line_named: int = 0  # how many name its line
    reports: int = 0  # how many ranks left a report
    all_report: bool = False  # whether all survivors did
    words: str = ""  # the error of a survivor, best of one that did nothing wrong

    @property
    def was_run(self) -> bool:
        """Whether the job came to its fault."""
        return self.outcome not in ("not expressible", "not measured")


def names_rank(text: str, rank: int) -> bool:
    """Whether a text speaks of a rank by its number.

    >>> names_rank("[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 8000 ms", 3)
    True
    >>> names_rank("Timed out waiting 8000ms for recv operation to complete", 1)
    False
    """
    for found in _RANKS.finditer(text):
        for first, last in _PART.findall(found[1]):
            if int(first) <= rank <= int(last or first):
                return True
    return False


def names_line(text: str, places: Iterable[tuple[str, int]]) -> bool:
    """Whether a text has one of some places, as ``file.py:12`` or as tracebacks say it.

    >>> names_line("rank 1 is at  faults/programs.py:42 in skipped", [("programs.py", 42)])
    True
    """
    return any(
        re.search(rf'\b{re.escape(file)}(?::|", line |:? line ){line}(?!\d)', text) is not None
        for file, line in places
    )


def tidy(text: str) -> str:
    """Take out of a text what differs from one machine, or from one run, to the next.

    >>> tidy("[/src/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:19867.")
    'Connection closed by peer.'
    """
    return _PLACE.sub("", text)


def judge(fault: Fault, tool: str, run: Run | None) -> Row:
    """Say what became of a job; ``run`` is None where the fault cannot be expressed."""
    if run is None or run.fault_at is None:
        return Row(fault.name, tool, "not expressible" if run is None else "not measured")
    places = fault.places(tool)
    ends = [_end(fault, run, run.fault_at, rank) for rank in range(fault.ranks)]
    kinds = [ends[rank].how for rank in fault.survivors]
    wrong = any(end.wrong for end in ends)
    failed = [ends[rank] for rank in fault.survivors if ends[rank].how in ("error", "abort")]
    seconds = sorted(round(end.seconds, 4) for end in failed)
    others = [ends[rank] for rank in (*fault.others, fault.wrong)]
    texts = [end.text for end in others if end.how in ("error", "abort")]
    told = [end.text for end in others[:-1] if end.how in ("error", "abort")]
    said = " ".join(texts[0].split()) if texts else ""
    worst = next((how for how in ("hang", "abort", "error") if how in kinds), "")
    return Row(
        fault.name,
        tool,
        worst or ("silent" if any(ends[rank].wrong for rank in fault.survivors) else "right"),
        len(kinds),
        seconds[0] if seconds else "",
        seconds[-1] if seconds else "",
        len(seconds),
        kinds.count("hang"),
        kinds.count("abort"),
        wrong,
        len(told),
        sum(names_rank(text, fault.wrong) for text in told),
        sum(names_line(text, places) for text in told),
        len(run.reported),
        {*run.reported}.issuperset(fault.survivors),
        said if len(said) <= _LONG else f"{said[: _LONG - 1]}…",
    )


def _end(fault: Fault, run: Run, since: float, rank: int) -> End:
    events = run.events[rank]
    # All values are whole numbers, or halves: the right one is equal, shape and all.
    wrong = any(event["got"] != event["right"] for event in events if event["kind"] == "value")
    for event in events:
        if event["kind"] == "raised":
            return End("error", event["time"] - since, tidy(event["text"]), wrong)
        if event["kind"] == "done":
            return End("done", event["time"] - since, "", wrong)
    if rank not in fault.survivors:
        return End("lost", wrong=wrong)
    if rank in run.died:
        at, how = run.died[rank]
        written = run.stderr[min(rank, len(run.stderr) - 1)].strip()  # a launcher's, if it started
        return End("abort", at - since, f"{how}: {tidy(written[-_WORDS:])}", wrong)
    return End("hang", wrong=wrong)


def cell(row: Row, limit: str = "20 s") -> str:
    """Say in a few words what became of a job."""
    if not row.was_run:
        return row.outcome
    if row.outcome in ("right", "silent"):
        return {"right": "right value", "silent": "**wrong number**, no error"}[row.outcome]
    said = "**wrong number**, then " if row.wrong else ""
    if row.hung:
        whose = "" if row.hung == row.survivors else f"{row.hung} of {row.survivors} "
        said += f"{whose}**hang** (> {limit})"
        said += "; " if row.ended else ""
    if row.ended:
        kinds = "abort" if row.aborted == row.ended else "abort and error"
        first, last = f"{row.first:.1f}", f"{row.last:.1f}"
        span = first if first == last else f"{first}–{last}"
        said += f"{kinds if row.aborted else 'error'} {span} s{_named(row)}"
    return said


def _named(row: Row) -> str:
    """Say what the errors of those who did nothing wrong name."""
    said = []
    for what, count in (("rank", row.rank_named), ("line", row.line_named)):
        if count:
            said.append(what if count == row.told else f"{what} ({count} of {row.told})")
    return f", names {' and '.join(said)}" if said else ""


def read(folder: Path) -> list[Row]:
    """Return the rows of earlier runs."""
    path = folder / "faults.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [Row(**{key: _value(text) for key, text in line.items()}) for line in _lines(file)]


def _lines(file: Any) -> list[dict[str, str]]:
    return [*csv.DictReader(file)]


def _value(text: str) -> Any:
    """Read a cell: a number, True or False, or a text."""
    if text in ("True", "False"):
        return text == "True"
    if re.fullmatch(r"-?\d+(\.\d+)?", text):
        return float(text) if "." in text else int(text)
    return text


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Return all rows in the order of the catalogue, the new ones in place of the old."""
    rows = {(row.fault, row.tool): row for row in [*old, *new]}
    return [rows[fault, tool] for fault in FAULTS for tool in TOOLS if (fault, tool) in rows]


def write(rows: Sequence[Row], facts: Mapping[str, str], folder: Path) -> None:
    """Write ``faults.csv`` and ``faults.md``; ``facts`` are those of the last run."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "faults.csv").open("w", newline="") as file:
        sheet = csv.DictWriter(file, [each.name for each in fields(Row)], lineterminator="\n")
        sheet.writeheader()
        sheet.writerows(asdict(row) for row in rows)
    (folder / "faults.md").write_text(markdown(rows, facts))


def markdown(rows: Sequence[Row], facts: Mapping[str, str]) -> str:
    """Tell it for reading."""
    tools = [tool for tool in TOOLS if any(row.tool == tool for row in rows)]
    patience = facts.get("patience", "8 s").removesuffix(" s")
    about = [f"- **{title(tool)}**: {TOOLS[tool][1].format(timeout=patience)}." for tool in tools]
    found = {(row.fault, row.tool): cell(row, facts.get("limit", "20 s")) for row in rows}
    lines = [
        [fault.title, *(found.get((fault.name, tool), "not run") for tool in tools)]
        for fault in FAULTS.values()
        if any((fault.name, tool) in found for tool in tools)
    ]
    parts = [
        "# What tools do when a job goes wrong",
        _INTRODUCTION,
        "\n".join(about),
        table(["fault", *map(title, tools)], lines),
        "## In numbers",
        table(_COUNTED, [_totals(tool, rows) for tool in tools]),
        "## The last run",
        ", ".join(f"{name} {value}" for name, value in facts.items()) + ".",
    ]
    return "\n\n".join(parts) + "\n"


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


def _totals(tool: str, rows: Sequence[Row]) -> list[Any]:
    """Count what became of the faults with a tool; what is no fault is left out."""
    ran = [row for row in rows if row.tool == tool and row.outcome != "not expressible"]
    mine = [row for row in ran if not FAULTS[row.fault].harmless]
    whole = [row for row in mine if row.was_run and row.ended == row.survivors]
    return [
        title(tool),
        len(mine),
        len(whole),
        sum(float(row.last) <= 1 for row in whole),
        sum(0 < row.told == row.rank_named for row in mine),
        sum(0 < row.told == row.line_named for row in mine),
        sum(row.wrong for row in mine),
        sum(row.outcome == "silent" for row in mine),
        sum(row.hung > 0 for row in mine),
        sum(row.aborted > 0 for row in mine),
        sum(row.all_report for row in mine),
    ]


_INTRODUCTION = """\
Real processes over gloo on one machine: 2 ranks, or 3 where one of them is lost. No agent such as
torchrun's watches over them. Each fault is the same program for every tool, but for Lightning,
whose own calls are used. `faults.csv` has every figure, and a survivor's words.

- Seconds are from the fault to the error on the first and on the last *survivor*: a rank that the
  fault has not taken away. All tools but the first have the same patience. A signal is sent when
  the others wait for half a second.
- *hang*: a survivor has neither raised nor ended when the limit is over.
- *wrong number*: a call returned what is not the right value, whatever happened later.
- *names rank*, *names line*: the text of the error, on ranks that did nothing wrong, has the
  number of the rank that did, or file and line of what that rank did. A rank's own traceback,
  which has the line where it waits itself, is not counted.
- *report*: a file of what a rank did last (`DISTMETRICS_REPORT`), which no other tool writes by
  default."""
