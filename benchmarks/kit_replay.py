"""Verdicts of the world of threads, replayed on real processes: do they agree, hangs included?"""

from __future__ import annotations

import functools
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from benchmarks.conformance.case import Case, batches
from benchmarks.conformance.catalogue import MODULES, find
from benchmarks.conformance.ranks import PLACE, missing
from distmetrics.testing import laws
from distmetrics.testing.batches import as_batch
from distmetrics.testing.equality import BITWISE, CLOSE
from distmetrics.testing.law_runner import verdict as law_verdict
from distmetrics.testing.laws import Law
from distmetrics.testing.subject import Subject, Sync, quiet
from distmetrics.testing.trial import LawBroken, RunWorld, Trial, compare, worlds

__all__ = [
    "LAYOUTS",
    "OF_STATE",
    "Compared",
    "agreements",
    "chosen",
    "made",
    "markdown",
    "verdict",
    "write",
]

LAYOUTS = (
    "even",
    "empty last",
    "batch counts",
    "empty but one",
    "empty first",
)  # of the conformance benchmark
OF_STATE = (
    laws.STATE_RESTORED,
    laws.SYNC_IS_IDEMPOTENT,
    laws.OBSERVATION,
    laws.ROUND_TRIP,
    laws.RESET_IS_NEW,
)
RANKS = 3


@dataclass(frozen=True)
class Compared:
    """One case on both transports.

    Attributes:
        name: the class and its construction; ``sync``: whose.
        asked: how the data was dealt, or the law.
        threads: the verdict there; ``gloo``: on processes.
        detail: what was said on processes.
    """

    name: str
    sync: str
    asked: str
    threads: str
    gloo: str
    detail: str
    seconds: float

    @property
    def agree(self) -> bool:
        """Whether the verdicts are the same."""
        return self.threads == self.gloo

    def __str__(self) -> str:
        said = self.threads if self.agree else f"threads: {self.threads}; gloo: {self.gloo}"
        return f"{self.name:44} {self.sync:12} {self.asked:18} {self.seconds:5.1f} s  {said}"


def chosen(cases: Sequence[Case], number: int) -> Iterator[tuple[Case, Sync, str | Law]]:
    """Yield so many questions, spread evenly over the classes.

    Two of three are of the own sync, one of four is of a law.
    """
    for index in range(number):
        case = cases[index * len(cases) // number]
        sync: Sync = "distmetrics" if index % 3 == 2 else "own"
        if index % 4 == 3:
            yield case, sync, OF_STATE[index // 4 % len(OF_STATE)]
        else:
            yield case, sync, LAYOUTS[index % len(LAYOUTS)]


def agreements(cases: Sequence[Case], number: int, folder: Path | None) -> int:
    """Ask about so many cases on both transports; return 1 if a verdict differs.

    What was found is printed, and written to the folder if there is one.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["distmetrics.launch.spawn", *MODULES]
    )
    forkserver.ensure_running()  # imported once, and not by each rank
    rows = []
    here = [case for case in cases if not missing(case.name)]
    with worlds("threads") as threads, worlds("gloo") as processes:
        for case, sync, asked in chosen(here, number):
            rows.append(row := _compared(case, sync, asked, (threads, processes)))
            print(row, flush=True)
    tally = Counter(row.threads for row in rows)
    print(
        f"{sum(row.agree for row in rows)} of {len(rows)} agree: "
        f"{', '.join(f'{n} {v}' for v, n in tally.items())}"
    )
    if folder is not None:
        write(rows, folder)
    return int(not all(row.agree for row in rows))


def write(rows: Sequence[Compared], folder: Path) -> None:
    """Write ``kit_replay.json`` and ``kit_replay.md``."""
    (folder / "kit_replay.json").write_text(
        json.dumps([asdict(row) for row in rows], indent=1) + "\n"
    )
    (folder / "kit_replay.md").write_text(markdown(rows))


def _make(name: str) -> Any:
    return find(name).make()  # some classes of the catalogue cannot be pickled, their names can


def _compared(case: Case, sync: Sync, asked: str | Law, on: Sequence[RunWorld]) -> Compared:
    start = time.monotonic()
    (threads, _), (gloo, detail) = (verdict(made(case, sync, asked, each), asked) for each in on)
    said = PLACE.sub("", detail.partition("\n")[0])
    return Compared(case.name, sync, str(asked), threads, gloo, said, time.monotonic() - start)


def made(case: Case, sync: Sync, asked: str | Law, run_world: RunWorld) -> Trial:
    """Return the trial of a case, on threads or on processes; a law is asked of the even layout."""
    layout = asked if isinstance(asked, str) else "even"
    shards = tuple(
        tuple(map(as_batch, batches(case, layout, RANKS, rank))) for rank in range(RANKS)
    )
    return Trial(Subject.of(functools.partial(_make, case.name), sync), CLOSE, run_world, shards)


def verdict(trial: Trial, asked: str | Law) -> tuple[str, str]:
    """Return the verdict on exactly these shards, and what there is to say about it."""
    if isinstance(asked, Law):
        result = law_verdict(asked, trial)
        if isinstance(result, LawBroken):
            return "broken", result.detail
        return ("not judged", str(result).partition("\n")[0]) if result else ("holds", "")
    with quiet():
        single, ranks = trial.single(), trial.world(trial.shards)
    for kind, said in (("stuck", "no-hang broken"), ("raised", "raises")):
        if texts := [rank.text for rank in ranks if rank.kind == kind]:
            same = kind == single.kind and len(texts) == RANKS
            return ("raises as a single process does" if same else said), texts[0]
    if single.kind != "value":
        return "a value where a single process raises", single.text
    got = [rank.value for rank in ranks]
    try:
        said = "another value"
        compare(single.value, got, trial.loosely, trial.shards)
        said = "ranks disagree"
        compare(got[0], got, BITWISE, trial.shards)
    except LawBroken as broken:
        return said, broken.detail
    return "holds", ""


def markdown(rows: Sequence[Compared]) -> str:
    """Tell it for reading."""
    tally = Counter((row.sync, row.threads, row.gloo) for row in rows)
    lines = ["| sync | verdict on threads | verdict on gloo | cases |", "|---" * 4 + "|"]
    lines += [
        f"| {sync} | {one} | {other} | {n} |" for (sync, one, other), n in sorted(tally.items())
    ]
    parts = [
        "# Verdicts on threads and on processes",
        _INTRODUCTION,
        f"{sum(row.agree for row in rows)} of {len(rows)} agree.",
        "\n".join(lines),
        *(
            ["\n".join(f"- {row}" for row in rows if not row.agree)]
            if not all(row.agree for row in rows)
            else []
        ),
        "## Every case",
        "\n".join(
            ["| class | sync | asked | threads | gloo |", "|---" * 5 + "|", *map(_line, rows)],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _line(row: Compared) -> str:
    return f"| `{row.name}` | {row.sync} | {row.asked} | {row.threads} | {row.gloo} |"


_INTRODUCTION = f"""\
Classes spread evenly over torchmetrics, {RANKS} ranks each: either a layout of batches over
ranks, of which the verdict is how the ranks end and whether every value is the single process's,
or a law about the state. The same question is asked of a world of threads and of gloo processes.
*no-hang broken*: a process is killed by gloo, or ranks wait for others that will never come;
*raises*: the metric itself raises an error on some rank. `kit_replay.json` is the same for
machines."""
