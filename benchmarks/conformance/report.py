"""The results as CSV, one row a case, world size and layout, and as Markdown, one row a class."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.conformance.causes import cause_of
from benchmarks.conformance.verdict import VERDICTS, Row

__all__ = ["Report", "counts", "disagreements"]


@dataclass(frozen=True)
class Report:
    """All that a run has found.

    Attributes:
        rows: the verdicts.
        absent: class → why it was not run.
        facts: name → value, shown at the top: command, versions, duration.
    """

    rows: Sequence[Row]
    absent: Mapping[str, str]
    facts: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """Write ``conformance.csv`` and ``conformance.md``."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "conformance.csv").open("w", newline="") as file:
            sheet = csv.writer(file, lineterminator="\n")
            sheet.writerow([field.name for field in dataclasses.fields(Row)])
            sheet.writerows(dataclasses.astuple(row) for row in self.rows)
        (folder / "conformance.md").write_text(self.markdown())

    def markdown(self) -> str:
        """Return the report for reading."""
        parts = [
            "# Conformance",
            _INTRODUCTION,
            "\n".join(f"- {name}: {value}" for name, value in self.facts.items()),
            "## Totals",
            self._totals(),
            "## Where distmetrics is not right",
            self._exceptions("distmetrics"),
            "## Where torchmetrics' own sync is not right",
            _PEER,
            self._kinds("torchmetrics"),
            self._exceptions("torchmetrics"),
            "## Threads and processes",
            self._transports(),
            "## Classes",
            self._classes(),
            "## Not run",
            "\n".join(f"- `{name}`: {reason}" for name, reason in sorted(self.absent.items()))
            or "None.",
        ]
        return "\n\n".join(parts) + "\n"

    def _totals(self) -> str:
        lines = [
            f"| | classes | constructions | cases | {' | '.join(VERDICTS)} |",
            "|---" * 9 + "|",
        ]
        for library, transport in sorted(
            {(row.package, row.transport) for row in self.rows}, reverse=True
        ):
            rows = [
                row for row in self.rows if (row.package, row.transport) == (library, transport)
            ]
            kinds, names = len({row.kind for row in rows}), len({row.name for row in rows})
            cells = [f"{library}, {transport}", kinds, names, len(rows), *counts(rows).values()]
            lines.append(f"| {' | '.join(map(str, cells))} |")
        return "\n".join(lines)

    def _exceptions(self, library: str) -> str:
        """List what is not ok, those together that fail alike.

        That is: the same verdict in the same layouts for one cause.
        """
        failed: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in self.rows:
            if row.package == library and row.verdict != "ok":
                failed[row.name, row.verdict].append(row)
        alike: defaultdict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
        for (_, verdict), rows in sorted(failed.items()):
            where = ", ".join(
                f"{layout} × {n}" for layout, n in Counter(row.layout for row in rows).items()
            )
            alike[verdict, where, _said(rows[0]), cause_of(rows[0].kind, verdict)].append(rows[0])
        lines = []
        for (verdict, where, _, cause), firsts in sorted(alike.items()):
            first, names = firsts[0], ", ".join(f"`{row.name}`" for row in firsts)
            example = f"W = {first.world_size}, {first.layout}: {first.detail.rstrip('. ')}"
            lines.append(
                f"- **{verdict}** ({where}): {names}. "
                f"{example}.{f' Cause: {cause}.' if cause else ''}"
            )
        return "\n".join(lines) or "Nowhere."

    def _kinds(self, library: str) -> str:
        """Count the failures of a library by what was said."""
        tally: Counter[tuple[str, str]] = Counter()
        where: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for row in self.rows:
            if row.package == library and row.verdict != "ok":
                said = (
                    "another value"
                    if row.verdict == "wrong"
                    else re.sub(r"^rank \d+: |; \d other.*$", "", row.detail)
                )
                tally[row.verdict, said] += 1
                where[row.verdict, said].add(row.kind)
        lines = ["| verdict | what is said | cases | classes |", "|---" * 4 + "|"]
        for key, count in tally.most_common():
            lines.append(f"| {key[0]} | {_cell(key[1])} | {count} | {len(where[key])} |")
        return "\n".join(lines)

    def _transports(self) -> str:
        apart = disagreements(self.rows)
        asked = [
            row for row in self.rows if row.package == "distmetrics" and row.transport == "gloo"
        ]
        kinds = len({row.kind for row in asked})
        head = (
            f"{len(asked)} cases of {kinds} classes were also synced by distmetrics between "
            "processes; "
        )
        return head + (
            "the verdicts that differ:\n\n" + "\n".join(f"- {line}" for line in apart)
            if apart
            else "every verdict is that of the threads."
        )

    def _classes(self) -> str:
        lines = [
            f"| class | group | distmetrics ok | torchmetrics {' | '.join(VERDICTS)} |",
            "|---" * 8 + "|",
        ]
        kinds: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in self.rows:
            kinds[row.group, row.kind].append(row)
        for (group, kind), rows in kinds.items():
            ours = [
                row for row in rows if row.package == "distmetrics" and row.transport == "threads"
            ]
            theirs = counts(row for row in rows if row.package == "torchmetrics")
            cells = [
                f"{counts(ours)['ok']} of {len(ours)}",
                *(str(n) if n else "" for n in theirs.values()),
            ]
            lines.append(f"| `{kind}` | {group} | {' | '.join(cells)} |")
        return "\n".join(lines)


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """Return how often each verdict was given."""
    tally = Counter(row.verdict for row in rows)
    return {verdict: tally[verdict] for verdict in VERDICTS}


def disagreements(rows: Iterable[Row]) -> list[str]:
    """Say where distmetrics' verdict on gloo is another than on threads."""
    found: defaultdict[tuple[str, int, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        if row.package == "distmetrics":
            found[row.name, row.world_size, row.layout][row.transport] = row
    return [
        f"{name}, W = {size}, {layout}: "
        + "; ".join(
            f"{transport} {row.verdict} {row.detail}".rstrip() for transport, row in both.items()
        )
        for (name, size, layout), both in found.items()
        if len({row.verdict for row in both.values()}) > 1
    ]


def _said(row: Row) -> str:
    """Return the detail without what differs from case to case."""
    return (
        "another value"
        if row.verdict == "wrong"
        else re.sub(r"^rank \d+: |; \d other.*$", "", row.detail)
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_PEER = """\
Most failures have one of two causes. A rank without data gathers a filler tensor of torchmetrics'
choice, whose dtype or number of dimensions is not that of the data: gloo aborts the process. And
states that are lists without a reduction are gathered item by item, so that ranks with different
numbers of updates call different numbers of collectives."""

_INTRODUCTION = """\
Is the synced value the one that a single process would have computed? For each class, world size
W and layout of batches over ranks, one metric object is updated with the batches of rank 0, then
those of rank 1, and so on; that is the expected value. A case is *ok* if every rank returns it:
integers equal, floats within 1e-5 relative or 1e-6 absolute, NaN equal to NaN, the same types,
shapes and keys, and bitwise the same on all ranks. Where the single process raises (most often:
no data at all), the same error on every rank is ok.

distmetrics runs on threads for every layout, and on gloo processes for a sample; torchmetrics'
own sync runs on gloo processes for some layouts. *hang*: some ranks wait for others that have
ended, or nobody moves until the time limit. *abort*: a process is killed by a signal."""
