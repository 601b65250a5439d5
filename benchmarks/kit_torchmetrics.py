"""Judge every torchmetrics class by the laws: with its own sync, and with distmetrics' sync.

    python -m benchmarks.kit_torchmetrics              # one construction a class, written
    python -m benchmarks.kit_torchmetrics --only 'AUROC|Retrieval'      # a part, printed only

Needs the extra ``bench-conformance``, for the classes that need more than torchmetrics to be
constructed.
"""

from __future__ import annotations

import argparse
import inspect
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.common import facts
from benchmarks.conformance.case import Case
from benchmarks.conformance.catalogue import cases, find
from benchmarks.conformance.pool import World
from benchmarks.conformance.ranks import Ended, missing
from benchmarks.kit_results import Judged, read, summary, write
from distmetrics import LawViolation
from distmetrics.testing import Violation, check_metric, laws
from distmetrics.testing.laws import Law, Laws

__all__ = ["asked_of", "batches", "judge", "shows_again"]

RESULTS = Path(__file__).parent / "results"
SIZES = (3, 1, 2, 2)  # of the batches that are dealt out
Sync = Literal["own", "distmetrics"]
SYNCS: tuple[Sync, ...] = ("own", "distmetrics")


def options() -> argparse.Namespace:
    """Read the command line."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument(
        "--only", default="", help="judge the cases whose name matches this regular expression"
    )
    ask.add_argument("--groups", nargs="+", help="of torchmetrics' subpackages; default all")
    ask.add_argument(
        "--parts",
        type=Path,
        nargs="+",
        metavar="JSON",
        help="write the results of runs of parts as one",
    )
    ask.add_argument(
        "--every", action="store_true", help="every construction, not the first one of each class"
    )
    ask.add_argument("--syncs", nargs="+", choices=SYNCS, default=list(SYNCS))
    ask.add_argument("--max-examples", type=int, default=2)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--limit", type=float, default=60.0, help="seconds that a class may take")
    ask.add_argument("--jobs", type=int, default=1, help="classes at a time")
    ask.add_argument(
        "--out",
        type=Path,
        help=f"folder of the results; default {RESULTS.name}/ if everything is run",
    )
    return ask.parse_args()


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
            made += [bound.args if each.args else each.kwargs]
    return made


def asked_of(kind: str) -> Laws:
    """Return the laws of a class: those on by default, less what the value's nature rules out."""
    asked = laws.DEFAULT
    for pattern, off in _OFF.items():
        if re.fullmatch(pattern, kind):
            for law, reason in off.items():
                asked = asked.off(law, because=reason)
    return asked


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


def judge(name: str, sync: Sync, max_examples: int, seed: int) -> dict[str, Any]:
    """Judge one case, in the process that was asked to."""
    case = find(name)
    report = check_metric(
        case.make,
        batches(case),
        laws=asked_of(case.kind),
        sync=sync,
        max_examples=max_examples,
        seed=seed,
    )
    violations = [
        {
            "law": str(each.law),
            "detail": each.detail,
            "shards": each.shards,
            "expected": each.expected,
            "got": each.got,
            "text": str(each),
            "again": shows_again(each, case.make, sync),
        }
        for each in report.violations
    ]
    return {
        "metric": name,
        "judged": {str(law): number for law, number in report.judged.items()},
        "skipped": {str(law): why for law, why in report.skipped.items()},
        "violations": violations,
    }


def shows_again(violation: Violation, make: Any, sync: Sync) -> bool:
    """Whether the law, called with the smallest case, shows the violation again."""
    try:
        violation.law(make, violation.case, sync=sync)
    except LawViolation as error:
        return f"breaks the law {violation.law} " in str(error)
    return False


@dataclass(frozen=True)
class _Asked:
    case: Case
    sync: Sync
    max_examples: int
    seed: int
    limit: float

    def answer(self, world: World) -> Judged:
        """Ask a process; what it does not answer in time, or dies of, is told in the row."""
        start = time.monotonic()
        if why := _absent(world, self.case.name):
            return Judged(self.case.name, self.case.group, self.sync, 0.0, error=why)
        found = world.ask(judge, self.case.name, self.sync, self.max_examples, self.seed)[0]
        seconds = time.monotonic() - start
        said = Judged(self.case.name, self.case.group, self.sync, seconds)
        if not isinstance(found, Ended):
            return replace(said, report=found)
        return replace(
            said, error=f"no end after {self.limit:g} s" if found.kind == "hang" else found.text
        )


def _absent(world: World, name: str) -> str:
    found = world.ask(missing, name)[0]
    return found.text if isinstance(found, Ended) else str(found)


def judged(asked: Sequence[_Asked], jobs: int) -> Iterator[Judged]:
    """Yield a row for each, in order.

    Each job has a process of its own, which is killed when the time is over.
    """

    def part(number: int) -> list[Judged]:
        rows = []
        with World(1, group=False, limit=asked[0].limit) as world:
            for one in asked[number::jobs]:
                rows.append(row := one.answer(world))
                print(row, flush=True)
        return rows

    with ThreadPoolExecutor(jobs) as pool:
        parts = list(pool.map(part, range(jobs)))
    for index in range(len(asked)):
        yield parts[index % jobs][index // jobs]


def main() -> int:
    """Run, print, write; the exit code says whether anything was found that is not documented."""
    args = options()
    chosen = [case for name, case in cases().items() if re.search(args.only, name)]
    if args.groups:
        chosen = [case for case in chosen if case.group in args.groups]
    if not args.every:
        chosen = list({case.kind: case for case in reversed(chosen)}.values())[::-1]
    whole = not args.only and not args.groups
    if args.parts:
        rows = read(args.parts, [case.kind for case in chosen])
        return told(rows, args.out or RESULTS, sum(row.seconds for row in rows))
    start = time.monotonic()
    asked = [
        _Asked(case, sync, args.max_examples, args.seed, args.limit)
        for case in chosen
        for sync in args.syncs
    ]
    rows = list(judged(asked, args.jobs))
    took = time.monotonic() - start
    return told(rows, args.out or (RESULTS if whole else None), took)


def told(rows: Sequence[Judged], folder: Path | None, took: float) -> int:
    """Write the results if there is a folder, and print the totals; return the exit code."""
    if folder is not None:
        write(rows, folder, facts("benchmarks.kit_torchmetrics", took))
    return summary(rows, took)


if __name__ == "__main__":
    raise SystemExit(main())
