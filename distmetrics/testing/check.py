"""Judge a metric by the laws: on the shapes that are always tried, and on what hypothesis draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from distmetrics.errors import InputError, LawViolation
from distmetrics.testing.law import (
    Law,
    LawBroken,
    Laws,
    NotJudged,
    Runs,
    case_text,
    runs_of,
    shard_texts,
    text_of,
    told,
)
from distmetrics.testing.laws import DEFAULT, LAYOUTS
from distmetrics.testing.shards import (
    Case,
    Shards,
    checked_sizes,
    fewer,
    is_strategy,
    listed,
    partitions,
    shapes,
)
from distmetrics.testing.subject import Subject, Sync
from distmetrics.testing.worlds import Backend

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

# Smaller cases that are judged of a violation: processes take a hundred times as long.
_TRIES = {"threads": 100, "gloo": 6}


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that a metric breaks, and the smallest case that was found.

    Attributes:
        law: the law; ``law(make, case)`` raises again.
        metric: the metric's name.
        case: the batches of each rank.
        shards: the same, as code for each rank.
        expected: the value that every rank should have got, as text.
        got: the value that each rank has got, as text.
        detail: how they differ.
        text: all of this as one text, with why metrics break the law.

    >>> from distmetrics.testing import laws
    >>> [found] = check_metric(len, [(1,)], laws=laws.RANKS_AGREE, max_examples=1).violations
    >>> found.law.name, found.case, found.expected, found.got
    ('ranks-agree', (((1,),), ()), '1', ('1', '0'))
    >>> print(found)
    len breaks the law ranks-agree (2): all ranks get the same value, bit by bit ...
    """

    law: Law
    metric: str
    case: Case = field(compare=False)  # of tensors, as ``shards`` and ``text`` have them
    shards: tuple[str, ...]
    expected: str
    got: tuple[str, ...]
    detail: str
    text: str

    @classmethod
    def of(cls, law: Law, subject: Subject, case: Case, broken: LawBroken) -> Violation:
        """Describe how a metric breaks a law on a case."""
        options = "" if subject.sync == "distmetrics" else f', sync="{subject.sync}"'
        name = law.name.upper().replace("-", "_")
        again = f"case = {case_text(case)}\nlaws.{name}({subject.name}, case{options})"
        return cls(
            law,
            subject.name,
            case,
            shard_texts(case),
            text_of(broken.expected),
            tuple(map(text_of, broken.got)),
            broken.detail,
            told(law, subject, case, broken, again),
        )

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked of one metric.

    Attributes:
        metric: its name.
        sync: which sync was judged: that of "distmetrics", or the metric's "own".
        backend: "threads" or "gloo".
        world_sizes: numbers of ranks.
        judged: how many cases each law was judged on.
        skipped: why a law was judged on no case.
        off: laws that were declared off, and why.
        violations: one for each law that is broken, in the order of the laws.

    >>> from torchmetrics import SumMetric
    >>> from distmetrics.testing import laws
    >>> report = check_metric(SumMetric, [(1.0,), (2.0,)], laws=laws.RANKS_AGREE, max_examples=1)
    >>> print(report)
    SumMetric, synced by distmetrics, 2, 3 ranks on threads: 1 of 1 laws hold
    >>> report.ok, report.skipped
    (True, {})
    """

    metric: str
    sync: str
    backend: str
    world_sizes: tuple[int, ...]
    judged: Mapping[Law, int]
    skipped: Mapping[Law, str]
    off: Mapping[Law, str]
    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        """True if no law was broken."""
        return not self.violations

    def __str__(self) -> str:
        sync = "synced by distmetrics" if self.sync == "distmetrics" else "by its own sync"
        sizes = ", ".join(map(str, self.world_sizes))
        kept = f"{len(self.judged) - len(self.violations)} of {len(self.judged)} laws hold"
        lines = [f"{self.metric}, {sync}, {sizes} ranks on {self.backend}: {kept}"]
        lines += [f"  skipped  {law.name}: {why}" for law, why in self.skipped.items()]
        lines += [f"  off      {law.name}: {why}" for law, why in self.off.items()]
        return "\n\n".join(["\n".join(lines), *map(str, self.violations)])


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
    layouts: Sequence[Mapping[str, int]] = (),
) -> Report:
    """Judge a metric by the laws of distributed metrics; return what holds and what does not.

    Args:
        make: a class or function without arguments that makes a new metric, of torchmetrics,
            torcheval, or any library with an adapter. Or a function of a list of batches that does
            its own collectives and returns a value.
        batches: a list of what ``update`` is called with (tuples, or mappings of named arguments),
            or a hypothesis strategy of such lists, see :mod:`distmetrics.testing.inputs`.
        laws: the laws, with their equality, such as ``laws.DEFAULT.equal(relative(1e-4))``.
        world_sizes: numbers of ranks; the shapes that are always tried add a few.
        sync: which sync is judged: that of "distmetrics", or the metric's "own".
        backend: "threads", or "gloo" for real processes, which takes a hundred times as long.
        max_examples: how many examples hypothesis draws: lists of batches, or ways to deal the
            list.
        seed: of what is drawn; the same seed draws the same.
        layouts: meshes, as sizes by the usual names of axes, such as ``{"dp": 2, "tp": 2}``; on
            them ``laws.LAYOUTS`` are judged as well.

    Returns:
        the report; ``report.ok`` is false if a law is broken, and ``print(report)`` shows the
        smallest case.

    Raises:
        InputTypeError: ``make`` or ``batches`` cannot be judged.
        ConfigurationError: likewise; or an axis of ``layouts`` has no usual name.
        InputError: no law could be judged on any case, mostly since ``update`` refuses the batches.

    >>> from torchmetrics import SumMetric
    >>> batches = [(torch.tensor([1.0, 2.0]),), (torch.tensor([3.0]),)]
    >>> check_metric(SumMetric, batches, world_sizes=[2], max_examples=1).ok
    True
    """
    chosen = Laws.of(laws)
    if layouts:
        chosen |= LAYOUTS
    sizes = checked_sizes(world_sizes)
    subject = Subject.of(make, sync)
    judged: Counter[Law] = Counter()
    skipped: dict[Law, str] = {}
    violations: dict[Law, Violation] = {}
    with runs_of(subject, chosen.equality, backend, layouts) as runs_on:
        for runs, asked in _cases(batches, sizes, max_examples, seed, chosen, runs_on):
            for law in (each for each in asked if each not in violations):
                result = law.verdict(runs)
                if isinstance(result, NotJudged):
                    skipped.setdefault(law, str(result))
                    continue
                judged[law] += 1
                if result is not None:
                    # What has broken one law often breaks the next one.
                    cases = [*(each.case for each in violations.values()), Case(runs.shards)]
                    found = _smallest(law, runs_on, cases, result, _TRIES[backend])
                    violations[law] = Violation.of(law, subject, *found)
    if not judged and chosen:
        raise _unjudged(subject.name, skipped)
    return Report(
        subject.name,
        sync,
        backend,
        tuple(sizes),
        _in_order(judged),
        _in_order({law: why for law, why in skipped.items() if law not in judged}),
        dict(chosen.off_because),
        tuple(_in_order(violations).values()),
    )


def _unjudged(metric: str, skipped: Mapping[Law, str]) -> InputError:
    """Return the error that no law said anything, which would read as if all were well."""
    reasons = [f"  {law}: {why}" for law, why in _in_order(skipped).items()][:3]
    return InputError(
        "\n".join([f"no law could be judged of {metric}, so nothing is known of it", *reasons]),
        likely="the batches are not what its update() takes.",
        do="update one by hand with a batch of yours, and see what it says.",
    )


def assert_distributed(make: Any, batches: Any, **options: Any) -> None:
    """Raise if a metric breaks a law; a whole test in one line.

    Args:
        make: as for :func:`check_metric`.
        batches: as for :func:`check_metric`.
        options: the other arguments of :func:`check_metric`.

    Raises:
        LawViolation: a law is broken; the text is the report.
        InputError: as :func:`check_metric`.

    >>> from torchmetrics import MaxMetric
    >>> batches = [(torch.tensor([1.0, 2.0]),)]
    >>> assert_distributed(MaxMetric, batches, world_sizes=[2], max_examples=1)
    """
    __tracebackhide__ = True  # pytest shows the line of the test, and the report
    report = check_metric(make, batches, **options)
    if not report.ok:
        raise LawViolation(str(report))


def _cases(
    batches: Any,
    sizes: Sequence[int],
    max_examples: int,
    seed: int,
    laws: Laws,
    runs_on: Callable[[Shards], Runs],
) -> Iterator[tuple[Runs, Iterable[Law]]]:
    """Yield runs, which the shapes of an example share, and the laws that are judged by them."""
    on_all_shards = [law for law in laws if law.on_all_shards]
    is_drawn = is_strategy(batches)
    for example in drawn(batches, max_examples, seed) if is_drawn else [batches]:
        first, *others = shapes(listed(example), sizes).values()
        runs = runs_on(first)
        yield runs, laws
        yield from ((replace(runs, shards=shards), on_all_shards) for shards in others)
    if not is_drawn:
        for shards in drawn(partitions(listed(batches), sizes), max_examples, seed):
            yield runs_on(shards), on_all_shards


def drawn(strategy: Any, number: int, seed: int) -> list[Any]:
    """Return examples of a hypothesis strategy, the same for the same seed."""
    import hypothesis

    examples: list[Any] = []

    def keep(example: Any) -> None:
        examples.append(example)

    def draw() -> None:
        settings = hypothesis.settings(
            database=None,
            deadline=None,
            max_examples=number,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        hypothesis.seed(seed)(settings(hypothesis.given(strategy)(keep)))()  # type: ignore[no-untyped-call]

    if not hypothesis.currently_in_test_context():
        draw()
        return examples
    # A test of hypothesis allows no other on its thread; on a new thread, it collects garbage once.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(draw).result()
    return examples


def _smallest(
    law: Law,
    runs_on: Callable[[Shards], Runs],
    cases: Sequence[Case],
    broken: LawBroken,
    tries: int,
) -> tuple[Case, LawBroken]:
    """Leave out ranks, batches and samples of a case, the last one, until the law holds without."""

    def verdict(case: Case) -> LawBroken | None:
        found = law.verdict(runs_on(case))
        return found if isinstance(found, LawBroken) else None

    *others, smallest = cases
    for other in others:
        if found := verdict(other):
            smallest, broken = other, found
            break
    candidates = [*fewer(smallest)]
    place = unchanged = 0
    while unchanged < len(candidates) and tries > 0:
        candidate = candidates[place % len(candidates)]
        found = verdict(candidate)
        tries -= 1
        if found is None:
            place, unchanged = place + 1, unchanged + 1
        else:
            smallest, broken = candidate, found
            candidates, unchanged = [*fewer(candidate)], 0
    return smallest, broken


def _in_order(by_law: Mapping[Law, Any]) -> dict[Law, Any]:
    return dict(sorted(by_law.items(), key=lambda item: item[0].number))
