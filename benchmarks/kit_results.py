"""The results of judging torchmetrics' classes: rows, and how they are told."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.conformance.report import cause_of
from distmetrics.testing import laws
from distmetrics.testing.laws import Law

__all__ = ["Judged", "markdown", "read", "summary", "totals", "undocumented", "why", "write"]

_LONG = 4000  # characters of a text
_RESTORED = laws.STATE_RESTORED.name


@dataclass(frozen=True)
class Judged:
    """One class, judged with one sync.

    Attributes:
        name: the class, with what is special about its construction in brackets.
        group: torchmetrics' subpackage.
        sync: "own" or "distmetrics".
        seconds: how long it took.
        report: of ``check_metric``, as a dictionary.
        error: why there is none.
    """

    name: str
    group: str
    sync: str
    seconds: float
    report: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def kind(self) -> str:
        """The class alone."""
        return self.name.partition("[")[0]

    @property
    def violations(self) -> Sequence[Mapping[str, Any]]:
        """What is broken."""
        found: Sequence[Mapping[str, Any]] = self.report.get("violations", ())
        return found

    def __str__(self) -> str:
        said = (
            self.error
            or ", ".join(case["law"] for case in self.violations)
            or f"{len(self.report['judged'])} hold"
        )
        return f"{self.name:48} {self.sync:12} {self.seconds:5.1f} s  {said}"


def undocumented(rows: Iterable[Judged]) -> list[str]:
    """Say what distmetrics' sync breaks without a known fault of the class that explains it."""
    return [
        f"{row.name}: {case['law']}: {_first_line(case['detail'])}"
        for row in rows
        if row.sync == "distmetrics"
        for case in row.violations
        if not why(row.kind, case["law"])
    ]


# What classes do that no sync can mend, beside what the conformance benchmark knows.
_FAULTS = {
    r"BinaryFairness|BinaryGroupStatRates": "update() counts the i-th group that is in a batch "
    "as group i: in a batch "
    "without group 0, group 1 is counted as group 0",
    r"MultilabelRankingLoss": "update() counts a batch as one sample if none of its samples has "
    "both relevant and "
    "irrelevant labels",
}
_NO_STATE = {  # of round-trip
    r"FeatureShare": "the network that the metrics share gets an lru_cache for its forward(), "
    "which cannot be pickled",
    r"PerceptualPathLength": "the generator that it measures is no state",
    r"Running(Mean|Sum)?": "which update comes next is kept in an attribute that is no state: "
    "state_dict() lacks it",
}


def why(kind: str, law: str) -> str:
    """Return the documented fault of a class that breaks a law whatever syncs it, or ""."""
    of_copies = law in (laws.ROUND_TRIP.name, laws.DTYPE_KEPT.name)
    for pattern, text in (_NO_STATE if of_copies else _FAULTS).items():
        if re.fullmatch(pattern, kind):
            return text
    return "" if of_copies else cause_of(kind, "wrong")


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def totals(rows: Sequence[Judged]) -> list[str]:
    """Say for each sync how many classes break a law."""
    said = []
    for sync in dict.fromkeys(row.sync for row in rows):
        mine = [row for row in rows if row.sync == sync]
        judged = {row.kind for row in mine if not row.error}
        bad = {row.kind for row in mine if row.violations}
        more = {
            row.kind for row in mine if any(case["law"] != _RESTORED for case in row.violations)
        }
        cases = [case for row in mine for case in row.violations]
        tried = [case["again"] for case in cases if "again" in case]
        said.append(
            f"{sync} sync: {len(bad)} of {len(judged)} classes break a law, {len(more)} of them "
            "another one than "
            f"{_RESTORED}; {len(cases)} violations, of which {sum(tried)} of {len(tried)} show "
            "again on their smallest case; "
            f"{sum(bool(row.error) for row in mine)} cases not judged"
        )
    return said


def summary(rows: Sequence[Judged], took: float) -> int:
    """Print the totals; return the exit code."""
    left = undocumented(rows)
    print(
        *totals(rows),
        f"{len(left)} violations of distmetrics' sync without a documented cause",
        *left,
        sep="\n",
    )
    print(f"took {took:.0f} s")
    return int(bool(left))


def read(paths: Sequence[Path], kinds: Sequence[str]) -> list[Judged]:
    """Return the rows of several runs, each of a part of the classes, in the order of all."""
    rows = [Judged(**row) for path in paths for row in json.loads(path.read_text())]
    return sorted(rows, key=lambda row: kinds.index(row.kind))


def write(rows: Sequence[Judged], folder: Path, facts: Mapping[str, str]) -> None:
    """Write ``kit_torchmetrics.md``, ``.csv`` and ``.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kit_torchmetrics.json").write_text(
        json.dumps([_kept(row) for row in rows], indent=1) + "\n"
    )
    with (folder / "kit_torchmetrics.csv").open("w", newline="") as file:
        sheet = csv.writer(file, lineterminator="\n")
        sheet.writerow(
            ["name", "group", "sync", "law", "verdict", "detail", "shards", "expected", "got"]
        )
        for row in rows:
            sheet.writerows(_lines(row))
    (folder / "kit_torchmetrics.md").write_text(markdown(rows, facts))


def _kept(row: Judged) -> dict[str, Any]:
    """Return a row for the JSON; a text with whole images in it is left out."""
    found = asdict(row)
    for case in found["report"].get("violations", ()):
        if len(case["text"]) > _LONG:
            case["text"] = f"{len(case['text'])} characters: --only {row.kind} makes it again"
    return found


def _lines(row: Judged) -> Iterator[list[str]]:
    """Yield a line for each law, a violation with its smallest case."""
    head = [row.name, row.group, row.sync]
    if row.error:
        yield [*head, "", "not judged", row.error, "", "", ""]
        return
    broken = {case["law"]: case for case in row.violations}
    for law in row.report["judged"]:
        if case := broken.get(law):
            texts = [
                _first_line(case["detail"]),
                "; ".join(case["shards"]),
                case["expected"],
                "; ".join(case["got"]),
            ]
            yield [*head, law, "broken", *texts]
        else:
            yield [*head, law, "holds", "", "", "", ""]
    for law, reason in row.report["skipped"].items():
        yield [*head, law, "skipped", _first_line(reason), "", "", ""]


def markdown(rows: Sequence[Judged], facts: Mapping[str, str]) -> str:
    """Return the results for reading."""
    parts = [
        "# All classes of torchmetrics by the laws",
        _INTRODUCTION,
        "\n".join(f"- {name}: {value}" for name, value in facts.items()),
        "\n".join(f"- {line}" for line in totals(rows)),
        "## How many classes break which law",
        _by_law(rows),
        "## What distmetrics' sync breaks",
        "Documented faults of the classes, which they have with any sync:\n\n" + _ours(rows),
        "## Their own sync: law × class",
        _matrix([row for row in rows if row.sync == "own"]),
        "## The smallest cases",
        _cases([row for row in rows if row.sync == "own"]),
        "## Not judged",
        "\n".join(f"- `{row.name}`, {row.sync}: {_cell(row.error)}" for row in rows if row.error)
        or "None.",
    ]
    return "\n\n".join(parts) + "\n"


def _by_law(rows: Sequence[Judged]) -> str:
    syncs = list(dict.fromkeys(row.sync for row in rows))
    lines = [
        f"| law | {' | '.join(f'{sync} sync' for sync in syncs)} |",
        "|---" * (1 + len(syncs)) + "|",
    ]
    for law in laws.DEFAULT:
        cells = []
        for sync in syncs:
            mine = [row for row in rows if row.sync == sync and not row.error]
            broken = {
                row.kind for row in mine if any(case["law"] == law.name for case in row.violations)
            }
            judged = {row.kind for row in mine if law.name in row.report["judged"]}
            cells.append(f"{len(broken)} of {len(judged)}" if judged else "not judged")
        lines.append(f"| {law.number} {law.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ours(rows: Sequence[Judged]) -> str:
    found = [(row, case) for row in rows if row.sync == "distmetrics" for case in row.violations]
    return (
        "\n".join(
            f"- `{row.name}`, {case['law']}: {_cell(_first_line(case['detail']))}. "
            f"Cause: {why(row.kind, case['law']) or '**not documented**'}."
            for row, case in found
        )
        or "None."
    )


def _matrix(rows: Sequence[Judged]) -> str:
    judged = [
        law for law in laws.DEFAULT if any(law.name in row.report.get("judged", ()) for row in rows)
    ]
    head = " | ".join(str(law.number) for law in judged)
    lines = [f"| class | group | {head} |", "|---" * (2 + len(judged)) + "|"]
    for row in rows:
        if not row.error:
            cells = [_mark(row, law) for law in judged]
            lines.append(f"| `{row.name}` | {row.group} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mark(row: Judged, law: Law) -> str:
    if any(case["law"] == law.name for case in row.violations):
        return "✗"
    return "" if law.name in row.report["judged"] else "–"


def _cases(rows: Sequence[Judged]) -> str:
    """Show one case of each law, and how many classes break it alike; all are in the JSON."""
    first: dict[str, tuple[Judged, Mapping[str, Any]]] = {}
    for row in rows:
        for case in row.violations:
            best = first.get(case["law"])
            if best is None or len(str(case["shards"])) < len(str(best[1]["shards"])):
                first[case["law"]] = row, case
    lines = []
    for law in laws.DEFAULT:
        if law.name in first:
            row, case = first[law.name]
            lines += [
                f"**{law.number} {law.name}**: `{row.name}`: {_first_line(case['detail'])}",
                "",
            ]
            lines += ["```text", case["text"], "```", ""]
    return "\n".join(lines).rstrip() or "None."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").rstrip(".")


_INTRODUCTION = """\
Each class is made once and judged by the laws that are on by default: with its own sync, as users
run it, and with distmetrics' sync. The ranks are threads, as strict as gloo about dtypes and
shapes. ✗ is a law that is broken, – one
that was not judged, empty one that holds. What is in the table with its smallest case is in
`kit_torchmetrics.csv`, and with its text in `kit_torchmetrics.json`."""
