"""Judge a metric by the laws: on the shapes that are always tried, and on what hypothesis draws."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distmetrics.comm.thread_pool import ThreadPool
from distmetrics.errors import InputError, InputTypeError, LawViolation, MissingDependencyError
from distmetrics.testing import judges_numbers, judges_state
from distmetrics.testing import laws as all_laws
from distmetrics.testing.equality import CLOSE, Equality
from distmetrics.testing.judges import JUDGES
from distmetrics.testing.laws import DEFAULT, Law, Laws
from distmetrics.testing.pool import Pool, pools
from distmetrics.testing.report import Report, Violation, tell
from distmetrics.testing.rows import Batch, as_batch
from distmetrics.testing.shards import partitions, shapes
from distmetrics.testing.shrink import shrunk
from distmetrics.testing.snippet import shown, snippet
from distmetrics.testing.subject import Subject, Sync, quiet
from distmetrics.testing.trial import Broken, NotJudged, Shards, Trial
from distmetrics.testing.world import Backend

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

assert judges_numbers  # they register their judges when they are imported
assert judges_state
_TRIES = {
    "threads": 80,
    "gloo": 6,
}  # smaller cases that are judged: processes take a hundred times as long
# Laws about how batches are dealt: judged on every shape. The others are judged on one dealing of
# an example.
_OF_DEALING = (
    all_laws.SINGLE_IS_SHARDED
    | all_laws.RANKS_AGREE
    | all_laws.EMPTY_RANK_IS_NEUTRAL
    | all_laws.NO_HANG
)


def check_metric(
    make: Any,
    batches: SearchStrategy[list[Any]] | Sequence[Any],
    *,
    laws: Laws | Law = DEFAULT,
    world_sizes: Sequence[int] = (2, 3),
    sync: Sync = "distmetrics",
    backend: Backend = "threads",
    max_examples: int = 10,
    seed: int = 0,
) -> Report:
    """Judge a metric by the laws of distributed metrics; return what holds and what does not.

    Args:
        make: makes a new metric: a class, or a function without arguments; of torchmetrics,
            torcheval, or any library with an adapter. Or a function of a list of batches that does
            its own collectives and returns a value.
        batches: a list of what ``update`` is called with (tuples, or mappings of named arguments),
            or a hypothesis strategy of such lists, as :mod:`distmetrics.testing.inputs` has them.
        laws: which; the equality is theirs (``laws.DEFAULT.equal(relative(1e-4))``).
        world_sizes: numbers of ranks; the shapes that are always tried add a few.
        sync: whose sync is judged: "distmetrics", or the metric's "own".
        backend: "threads", or "gloo" for real processes, which takes a hundred times as long.
        max_examples: how many examples hypothesis draws: lists of batches, or ways to deal the
            list.
        seed: of what is drawn; the same seed draws the same.

    Returns: the report, which is falsy in ``report.ok`` if a law is broken; ``print(report)`` shows
    the smallest case.

    Raises:
        InputTypeError, ConfigurationError: ``make`` or ``batches`` cannot be judged.
        InputError: no law could be judged on any case, most often since ``update`` refuses the
            batches.

    >>> from torchmetrics import SumMetric
    >>> check_metric(SumMetric, [(torch.tensor([1.0, 2.0]),), (torch.tensor([3.0]),)], max_examples=2).ok
    True
    """
    chosen = Laws.of(laws) if isinstance(laws, Law) else laws
    subject = Subject.of(make, sync)
    worlds = tuple(sorted(set(world_sizes)))
    if not worlds or worlds[0] < 1:
        raise InputError(f"world_sizes must be numbers of ranks from 1 on, got {world_sizes!r}")
    with _court(subject, chosen, backend) as court:
        for shards, is_first in _cases(batches, worlds, max_examples, seed):
            court.hear(
                shards, chosen if is_first else [law for law in chosen if law in _OF_DEALING]
            )
    report = court.report(make, worlds)
    if not report.judged and chosen.chosen:
        reasons = "\n".join(f"  {law.name}: {why}" for law, why in list(report.skipped.items())[:3])
        raise InputError(
            f"no law could be judged of {subject.name}, so nothing is known of it\n{reasons}",
            likely="the batches are not what its update() takes.",
            do="update one by hand with a batch of yours, and see what it says.",
        )
    tell(report)
    return report


def assert_distributed(make: Any, batches: Any, **options: Any) -> None:
    """Raise if a metric breaks a law; a whole test in one line.

    Args: as of :func:`check_metric`.

    Raises:
        LawViolation: with the report as its text.

    >>> from torchmetrics import MaxMetric
    >>> assert_distributed(MaxMetric, [(torch.tensor([1.0, 2.0]),)], max_examples=2)
    """
    __tracebackhide__ = True  # pytest shows the line of the test, and the report
    report = check_metric(make, batches, **options)
    if not report.ok:
        raise LawViolation(str(report))


def replay(
    make: Any,
    shards: Sequence[Sequence[Any]],
    *,
    law: Law | Laws,
    sync: Sync = "distmetrics",
    backend: Backend = "threads",
    equality: Equality = CLOSE,
) -> Report:
    """Judge laws on exactly these shards, as the snippet of a violation does.

    Args:
        make: as of :func:`check_metric`.
        shards: for each rank what its updates are called with.
        law: one, or several.
        sync: as of :func:`check_metric`.
        backend: as of :func:`check_metric`.
        equality: when values are the same.

    >>> from distmetrics.testing import laws
    >>> from torchmetrics import SumMetric
    >>> replay(SumMetric, [[(1.0,)], [(2.0,)]], law=laws.RANKS_AGREE).ok
    True
    """
    chosen = (Laws.of(law) if isinstance(law, Law) else law).equal(equality)
    given = tuple(tuple(map(as_batch, shard)) for shard in shards)
    with _court(Subject.of(make, sync), chosen, backend, shrinks=False) as court:
        court.hear(given, chosen)
    return court.report(make, (len(given),))


@dataclass
class _Court:
    """Judges case after case; a law that was found broken is not judged again."""

    subject: Subject
    laws: Laws
    backend: Backend
    shrinks: bool = True
    pool_of: Callable[[int], Pool] | None = None
    threads: ThreadPool | None = None
    judged: dict[Law, int] = field(default_factory=dict)
    why_not: dict[Law, str] = field(default_factory=dict)
    broken: dict[Law, tuple[Shards, Broken]] = field(default_factory=dict)

    def hear(self, shards: Shards, of: Iterable[Law]) -> None:
        """Judge one case."""
        trial = self._trial(shards)
        for law in of:
            if law in self.broken:
                continue
            try:
                with quiet():
                    found = JUDGES[law](trial)
            except NotJudged as reason:
                self.why_not.setdefault(law, str(reason))
                continue
            self.judged[law] = self.judged.get(law, 0) + 1
            if found is not None:
                self.broken[law] = self._smallest(law, shards, found)

    def _trial(self, shards: Shards) -> Trial:
        return Trial(self.subject, shards, self.laws.equality, self.pool_of, self.threads)

    def _smallest(self, law: Law, shards: Shards, found: Broken) -> tuple[Shards, Broken]:
        """Return the smallest case that breaks the law still, and how it does."""
        if not self.shrinks:
            return shards, found
        best = found

        def breaks(smaller: Shards) -> bool:
            nonlocal best
            try:
                with quiet():
                    again = JUDGES[law](self._trial(smaller))
            except NotJudged:
                return False
            best = again or best
            return again is not None

        return shrunk(shards, breaks, tries=_TRIES[self.backend]), best

    def report(self, make: Any, worlds: tuple[int, ...]) -> Report:
        """Return what was found."""
        violations = [
            self._violation(make, law, *found)
            for law, found in sorted(self.broken.items(), key=lambda x: x[0].number)
        ]
        return Report(
            self.subject.name,
            self.subject.sync,
            self.backend,
            worlds,
            {law: self.judged[law] for law in self.laws if law in self.judged},
            {
                law: self.why_not[law]
                for law in self.laws
                if law not in self.judged and law in self.why_not
            },
            dict(self.laws.off_because),
            tuple(violations),
        )

    def _violation(self, make: Any, law: Law, shards: Shards, found: Broken) -> Violation:
        detail = found.detail
        if shown(found.shards) != shown(shards):
            rows = [
                f"  rank {rank} was given  {text}" for rank, text in enumerate(shown(found.shards))
            ]
            detail = "\n".join([detail, "That is the run in which", *rows])
        again = snippet(make, shards, law, self.subject.sync, self.backend)
        return Violation(
            law, self.subject.name, shown(shards), found.expected, found.got, detail, again
        )


@contextlib.contextmanager
def _court(
    subject: Subject, laws: Laws, backend: Backend, *, shrinks: bool = True
) -> Iterator[_Court]:
    """Give a court; its threads, and worlds of processes if it needs any, end with the block."""
    if backend not in ("threads", "gloo"):
        raise InputError(f"backend must be 'threads' or 'gloo', got {backend!r}")
    with (
        ThreadPool() as threads,
        pools() if backend == "gloo" else contextlib.nullcontext() as pool_of,
    ):
        yield _Court(subject, laws, backend, shrinks, pool_of, threads)


def _cases(
    batches: Any, worlds: Sequence[int], max_examples: int, seed: int
) -> Iterator[tuple[Shards, bool]]:
    """Yield shards, and whether all laws are to be judged on them."""
    if hasattr(batches, "example") and hasattr(batches, "map"):
        for example in drawn(batches, max_examples, seed):
            given = _listed(example)
            for index, (_, shards) in enumerate(shapes(given, worlds).items()):
                yield shards, index == 0
        return
    given = _listed(batches)
    for label, shards in shapes(given, worlds).items():
        yield shards, label.startswith("in turn")
    for shards in drawn(partitions(given, worlds), max_examples, seed):
        yield shards, False


def _listed(batches: Any) -> list[Batch]:
    if isinstance(batches, str | bytes | dict) or not isinstance(batches, Iterable):
        raise InputTypeError(
            "batches must be a list of update arguments, or a hypothesis strategy of such lists, "
            "got "
            f"{type(batches).__name__}",
            do="pass [(preds, target), (preds, target)]",
        )
    given = [as_batch(batch) for batch in batches]
    if not given:
        raise InputError("batches is empty: there is nothing to judge a metric on")
    return given


def drawn(strategy: Any, number: int, seed: int) -> list[Any]:
    """Draw examples from a hypothesis strategy, the same for the same seed."""
    try:
        import hypothesis
    except ImportError as error:
        raise MissingDependencyError.of("hypothesis", "test", "drawing shards") from error
    examples: list[Any] = []

    def keep(example: Any) -> None:
        examples.append(example)

    settings = hypothesis.settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    def draw() -> None:
        hypothesis.seed(seed)(settings(hypothesis.given(strategy)(keep)))()  # type: ignore[no-untyped-call]

    with ThreadPoolExecutor(
        1
    ) as apart:  # a check may stand in a test that hypothesis runs: none in another
        apart.submit(draw).result()
    return examples
