"""Judge every torchmetrics class by the laws: with its own sync, and with distmetrics' sync.

    python -m benchmarks.kit_torchmetrics                  # goes on where the last run ended
    python -m benchmarks.kit_torchmetrics --only AUROC     # a part of the classes

What was judged stands in kit_torchmetrics.csv, and is not judged again: delete its lines for that.
The table, kit_torchmetrics.md, is of all that stands there. Needs the extra ``bench-conformance``,
for the classes that need more than torchmetrics to be constructed.
"""

from __future__ import annotations

import csv
import inspect
import re
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.common import RESULTS, facts, parser, table
from benchmarks.conformance.case import Case
from benchmarks.conformance.catalogue import cases, find
from benchmarks.conformance.pool import World
from benchmarks.conformance.ranks import Ended, missing
from benchmarks.conformance.report import cause_of
from distmetrics import LawViolation
from distmetrics.testing import Violation, check_metric, laws
from distmetrics.testing.laws import Law, Laws

SIZES = (3, 1, 2, 2)  # of the batches that are dealt out
Sync = Literal["own", "distmetrics"]
SYNCS: tuple[Sync, ...] = ("own", "distmetrics")


@dataclass(frozen=True)
class Row:
    """One class, judged with one sync.

    Attributes:
        name: the class, with what is special about its construction in brackets.
        held: numbers of the laws that hold.
        broken: numbers of the laws that are broken.
        again: how many of those show it again on their smallest case.
        detail: of each violation its first line.
        error: why nothing was judged.
    """

    name: str
    sync: str
    held: str = ""
    broken: str = ""
    again: int = 0
    detail: str = ""
    error: str = ""

    @property
    def kind(self) -> str:
        """The class alone."""
        return self.name.partition("[")[0]

    def breaks(self) -> list[tuple[Law, str]]:
        """Return the laws that are broken, with their details."""
        return [
            (laws.find(number), detail)
            for number, detail in zip(self.broken.split(), self.detail.split("\n"), strict=False)
        ]


# Laws that a class cannot keep by the nature of its value.
_IN_ORDER = "the value has an entry a sample, in the order of the samples"
_BY_PLACE = "random subsets are drawn by the images' places, which are others in another order"
_RESAMPLED = "each update draws a random sample of its own batch, and another one of another batch"
_EXTREMES = "the value is the least and the greatest of all that were computed: every look counts"
_OFF: dict[str, dict[Law, str]] = {
    r"BootStrapper": {laws.SAMPLE_ORDER: _RESAMPLED, laws.BATCH_SPLIT: _RESAMPLED},
    r"CatMetric|BERTScore": {laws.RANK_ORDER: _IN_ORDER, laws.SAMPLE_ORDER: _IN_ORDER},
    r"KernelInceptionDistance|InceptionScore": {
        laws.RANK_ORDER: _BY_PLACE,
        laws.SAMPLE_ORDER: _BY_PLACE,
    },
    r"MinMaxMetric": {laws.OBSERVATION: _EXTREMES},
}
# What classes do that no sync can mend, beside what the conformance benchmark knows.
_FAULTS = {
    r"BinaryFairness|BinaryGroupStatRates": "update() counts the i-th group that is in a batch as "
    "group i: in a batch without group 0, group 1 is counted as group 0",
    r"MultilabelRankingLoss": "update() counts a batch as one sample if none of its samples has "
    "both relevant and irrelevant labels",
}
_NO_STATE = {  # of copies
    r"FeatureShare": "the network that the metrics share gets an lru_cache for its forward(), "
    "which cannot be pickled",
    r"PerceptualPathLength": "the generator that it measures is no state",
    r"Running(Mean|Sum)?": "which update comes next is kept in an attribute that is no state: "
    "state_dict() lacks it",
}


def why(kind: str, law: Law) -> str:
    """Return the documented fault of a class that breaks a law whatever syncs it, or ""."""
    of_copies = law in (laws.ROUND_TRIP, laws.DTYPE_KEPT)
    for pattern, text in (_NO_STATE if of_copies else _FAULTS).items():
        if re.fullmatch(pattern, kind):
            return text
    return "" if of_copies else cause_of(kind, "wrong")


def asked_of(kind: str) -> Laws:
    """Return the laws of a class: those on by default, less what the value's nature rules out."""
    asked = laws.DEFAULT
    for pattern, off in _OFF.items():
        if re.fullmatch(pattern, kind):
            for law, reason in off.items():
                asked = asked.off(law, because=reason)
    return asked


def batches(case: Case) -> list[Any]:
    """Make the batches of a case: the same ones whoever asks."""
    takes = inspect.signature(case.make().update)
    made: list[Any] = []
    for index, size in enumerate(SIZES):
        generator = torch.Generator()
        generator.manual_seed(zlib.crc32(f"{case.kind}/kit/{index}".encode()))
        batch = case.batch(generator, size)
        for each in batch if isinstance(batch, list) else [batch]:
            bound = takes.bind(*each.args, **each.kwargs)  # some of it is given by name
            # A wrapper takes anything, so that what is named stays apart.
            made += [(*bound.args, *bound.kwargs.values()) if each.args else each.kwargs]
    return made


def judge(name: str, sync: Sync, max_examples: int) -> Row:
    """Judge one case, in the process that was asked to."""
    case = find(name)
    report = check_metric(
        case.make, batches(case), laws=asked_of(case.kind), sync=sync, max_examples=max_examples
    )
    found = report.violations
    broken = [each.law.number for each in found]
    return Row(
        name,
        sync,
        " ".join(str(law.number) for law in report.judged if law.number not in broken),
        " ".join(map(str, broken)),
        sum(shows_again(each, case.make, sync) for each in found),
        "\n".join(each.detail.partition("\n")[0] for each in found),
    )


def shows_again(violation: Violation, make: Any, sync: Sync) -> bool:
    """Whether the law, called with the smallest case, shows the violation again."""
    try:
        violation.law(make, violation.case, sync=sync)
    except LawViolation as error:
        return f"breaks the law {violation.law} " in str(error)
    return False


def answer(world: World, name: str, sync: Sync, max_examples: int, limit: float) -> Row:
    """Ask a process; what it does not answer in time, or dies of, is told in the row."""
    absent = world.ask(missing, name)[0]
    found = absent or world.ask(judge, name, sync, max_examples)[0]
    if isinstance(found, Row):
        return found
    if isinstance(found, Ended):
        found = f"no end after {limit:g} s" if found.kind == "hang" else found.text
    return Row(name, sync, error=str(found))


def read(path: Path) -> list[Row]:
    """Return what has been judged so far."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows: list[dict[str, Any]] = [*csv.DictReader(file)]
    return [Row(**{**row, "again": int(row["again"])}) for row in rows]


def append(path: Path, row: Row) -> None:
    """Write a row down at once, so that a run may end at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        sheet = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        if is_new:
            sheet.writeheader()
        sheet.writerow(asdict(row))


def undocumented(rows: Iterable[Row]) -> list[str]:
    """Say what distmetrics' sync breaks without a known fault of the class that explains it."""
    return [
        f"{row.name}: {law}: {detail}"
        for row in rows
        if row.sync == "distmetrics"
        for law, detail in row.breaks()
        if not why(row.kind, law)
    ]


def total(rows: Sequence[Row], sync: Sync) -> str:
    """Say how many classes break a law with a sync."""
    mine = [row for row in rows if row.sync == sync]
    judged = {row.kind for row in mine if not row.error}
    bad = {row.kind for row in mine if row.broken}
    usual = str(laws.STATE_RESTORED.number)
    more = {row.kind for row in mine if set(row.broken.split()) - {usual}}
    return (
        f"{sync} sync: {len(bad)} of {len(judged)} classes break a law, {len(more)} of them "
        f"another one than {laws.STATE_RESTORED}; "
        f"{sum(len(row.broken.split()) for row in mine)} violations, of which "
        f"{sum(row.again for row in mine)} show again on their smallest case; "
        f"{sum(bool(row.error) for row in mine)} cases not judged"
    )


def markdown(rows: Sequence[Row], known: dict[str, str]) -> str:
    """Return the table for reading."""

    def cell(law: Law, sync: Sync) -> str:
        number = str(law.number)
        mine = [row for row in rows if row.sync == sync]
        broken = {row.kind for row in mine if number in row.broken.split()}
        held = {row.kind for row in mine if number in row.held.split()}
        return f"{len(broken)} of {len(broken | held)}" if broken | held else "not judged"

    by_law = [[f"{law.number} {law}", *(cell(law, sync) for sync in SYNCS)] for law in laws.DEFAULT]
    ours = [(row, *each) for row in rows if row.sync == "distmetrics" for each in row.breaks()]
    parts = [
        "# All classes of torchmetrics by the laws",
        "Each class is made once and judged by the laws that are on by default, on threads.",
        "\n".join(f"- {name}: {value}" for name, value in known.items()),
        "\n".join(f"- {total(rows, sync)}" for sync in SYNCS),
        table(["law", *(f"{sync} sync" for sync in SYNCS)], by_law),
        "## What distmetrics' sync breaks",
        "\n".join(
            f"- `{row.name}`, {law}: {_cell(detail)}. Cause: "
            f"{why(row.kind, law) or '**not documented**'}."
            for row, law, detail in ours
        )
        or "None.",
        "## Not judged",
        "\n".join(f"- `{row.name}`, {row.sync}: {_cell(row.error)}" for row in rows if row.error)
        or "None.",
    ]
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").rstrip(".")


def main() -> int:
    """Judge what was not judged yet, write; exit with 1 if there is what is not documented."""
    ask = parser(__doc__)
    ask.add_argument("--only", default="", help="a regular expression that is in the class's name")
    ask.add_argument("--max-examples", type=int, default=1)
    ask.add_argument("--limit", type=float, default=90.0, help="seconds that a class may take")
    ask.add_argument("--out", type=Path, default=RESULTS, help="folder of the table")
    args = ask.parse_args()
    rows_path, start = args.out / "kit_torchmetrics.csv", time.monotonic()
    chosen = {case.kind: case for case in reversed(cases().values())}  # the first one of each
    names = [case.name for case in reversed(chosen.values())]
    done = {(row.name, row.sync) for row in read(rows_path)}
    with World(1, group=False, limit=args.limit) as world:
        for name in (each for each in names if re.search(args.only, each)):
            for sync in SYNCS:
                if (name, sync) not in done:
                    row = answer(world, name, sync, args.max_examples, args.limit)
                    append(rows_path, row)
                    print(
                        f"{name:48} {sync:12} {row.error or row.broken or 'all hold'}", flush=True
                    )
    rows = sorted(read(rows_path), key=lambda row: names.index(row.name))
    known = facts("benchmarks.kit_torchmetrics", time.monotonic() - start)
    known["classes"] = f"{len({row.name for row in rows})} of {len(names)} so far"
    (args.out / "kit_torchmetrics.md").write_text(markdown(rows, known))
    left = undocumented(rows)
    print(*(total(rows, sync) for sync in SYNCS), *left, sep="\n")
    return int(bool(left))


if __name__ == "__main__":
    raise SystemExit(main())
