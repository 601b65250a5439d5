"""Ask the worlds of processes about every case, and judge what they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType

from benchmarks.conformance.case import Case
from benchmarks.conformance.pool import World
from benchmarks.conformance.ranks import Ended, by_distmetrics, by_threads, by_torchmetrics, missing
from benchmarks.conformance.verdict import Row, judge

__all__ = ["Plan", "measure"]

TORCHMETRICS_SIZES = (2, 3)
TORCHMETRICS_LAYOUTS = ("even", "batch counts", "empty last", "empty but one")


@dataclass(frozen=True)
class Plan:
    """Which questions to ask.

    Attributes:
        sizes: world sizes of the threads.
        layouts: layouts of all that is run.
        peer: whether torchmetrics' own sync is run.
        sample: names of the cases that distmetrics also syncs on gloo.
        gloo_sizes: world sizes of that.
        limit: seconds after which a question without an answer is a hang.
        epochs: how often each world fills the metric, syncs, computes and resets it; every value
            counts.
    """

    sizes: Sequence[int]
    layouts: Sequence[str]
    peer: bool
    sample: frozenset[str]
    gloo_sizes: Sequence[int]
    limit: float
    epochs: int = 1


class _Worker:
    """One process for worlds of threads, and a gloo world of each size, started on demand."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._solo = World(1, group=False, limit=limit)
        self._gloo: dict[int, World] = {}

    def __enter__(self) -> _Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._solo.end()
        for world in self._gloo.values():
            world.end()

    def missing(self, case: Case) -> str:
        """Return why the metric cannot be constructed here, or ""."""
        answer = self._solo.ask(missing, case.name)[0]
        return answer.text if isinstance(answer, Ended) else str(answer)

    def threads(self, case: Case, layout: str, size: int, epochs: int) -> tuple[Ended, list[Ended]]:
        """Return how the single process ended, and how each rank of a world of threads did."""
        answer = self._solo.ask(by_threads, case.name, layout, size, epochs)[0]
        if isinstance(answer, Ended):  # the whole process, with all the ranks in it
            return Ended("error", text="see the ranks"), [answer]
        single, ranks = answer
        return single, ranks

    def gloo(
        self, fn: Callable[..., Ended], case: Case, layout: str, size: int, epochs: int
    ) -> list[Ended]:
        """Return how each rank of a gloo world ended."""
        if size not in self._gloo:
            self._gloo[size] = World(size, group=True, limit=self._limit)
        return self._gloo[size].ask(fn, case.name, layout, epochs)


@dataclass
class _Notes:
    """The rows of one case."""

    case: Case
    rows: list[Row] = field(default_factory=list)

    def add(
        self,
        library: str,
        transport: str,
        size: int,
        layout: str,
        single: Ended,
        ranks: list[Ended],
    ) -> None:
        """Judge, and write it down."""
        verdict, detail = judge(single, ranks)
        self.rows.append(
            Row(self.case.name, self.case.group, library, transport, size, layout, verdict, detail)
        )


def measure(cases: Sequence[Case], plan: Plan, jobs: int) -> Iterator[tuple[Case, list[Row], str]]:
    """Yield each case with its rows, or with the reason why it cannot be constructed here."""
    if jobs == 1:
        with _Worker(plan.limit) as worker:
            for case in cases:
                yield _one(worker, case, plan)
        return

    def part(number: int) -> list[tuple[Case, list[Row], str]]:
        with _Worker(plan.limit) as worker:
            return [_one(worker, case, plan) for case in cases[number::jobs]]

    with ThreadPoolExecutor(jobs) as pool:
        parts = list(pool.map(part, range(jobs)))
    for index in range(len(cases)):
        yield parts[index % jobs][index // jobs]


def _one(worker: _Worker, case: Case, plan: Plan) -> tuple[Case, list[Row], str]:
    """Ask everything about one case."""
    if why := worker.missing(case):
        return case, [], why
    notes = _Notes(case)
    peers = [size for size in plan.sizes if size in TORCHMETRICS_SIZES] if plan.peer else []
    others = list(plan.gloo_sizes) if case.name in plan.sample else []
    for size in sorted({*plan.sizes, *others}):
        for layout in plan.layouts:
            single, ranks = worker.threads(case, layout, size, plan.epochs)
            notes.add("distmetrics", "threads", size, layout, single, ranks)
            if size in others:
                ranks = worker.gloo(by_distmetrics, case, layout, size, plan.epochs)
                notes.add("distmetrics", "gloo", size, layout, single, ranks)
            if size in peers and layout in TORCHMETRICS_LAYOUTS:
                ranks = worker.gloo(by_torchmetrics, case, layout, size, plan.epochs)
                notes.add("torchmetrics", "gloo", size, layout, single, ranks)
    return case, notes.rows, ""
