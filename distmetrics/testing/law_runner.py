"""Judges laws on case after case, and keeps the smallest case that breaks each."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from distmetrics.errors import InputError
from distmetrics.testing.batches import Batch, Shards, count, take
from distmetrics.testing.equality import brief
from distmetrics.testing.law import Law, Laws
from distmetrics.testing.report import Report, Violation, given_lines
from distmetrics.testing.snippet import shard_texts, snippet
from distmetrics.testing.subject import Subject, Sync, quiet
from distmetrics.testing.trial import LAYOUTS, LawBroken, NotJudged, RankResult, Trial, worlds
from distmetrics.testing.world import Backend

Shard = tuple[Batch, ...]
# Smaller cases that are judged: processes take a hundred times as long.
_TRIES = {"threads": 80, "gloo": 6}


def judged(
    make: Any,
    cases: Iterable[tuple[Shards, Iterable[Law]]],
    laws: Laws,
    *,
    sync: Sync,
    backend: Backend,
    world_sizes: Sequence[int],
    shrinks: bool = True,
    layouts: Sequence[Mapping[str, int]] = (),
) -> Report:
    """Judge laws on case after case; a law that was found broken is not judged again.

    Args:
        make: what the user said makes the metric.
        cases: shards, each with the laws that are judged on them.
        laws: all of these laws, and when values are equal.
        sync: whose sync is judged.
        backend: "threads" or "gloo".
        world_sizes: for the report.
        shrinks: whether cases that break a law are made smaller.
        layouts: of laws about layouts; () for the usual ones.
    """
    subject = Subject.of(make, sync)
    if backend not in _TRIES:
        raise InputError(f"backend must be 'threads' or 'gloo', got {backend!r}")
    numbers: Counter[Law] = Counter()
    skipped: dict[Law, str] = {}
    violations: dict[Law, Violation] = {}
    with worlds(backend) as run_world:
        meshes = tuple(layouts) or LAYOUTS
        trial_of = partial(Trial, subject, laws.equality, run_world, layouts=meshes)
        for shards, asked in cases:
            trial = trial_of(shards)
            for law in asked:
                if law in violations:
                    continue
                result = verdict(law, trial)
                if isinstance(result, NotJudged):
                    skipped.setdefault(law, str(result))
                    continue
                numbers[law] += 1
                if result is not None:
                    tries = _TRIES[backend] * shrinks
                    smallest, broken = _smallest(law, trial_of, result, shards, tries)
                    program = snippet(make, smallest, law, sync, backend, layouts)
                    violations[law] = _violation(law, subject.name, smallest, broken, program)
    skipped = {law: why for law, why in skipped.items() if law not in numbers}
    return Report(
        subject.name,
        sync,
        backend,
        tuple(world_sizes),
        _in_order(numbers),
        _in_order(skipped),
        dict(laws.off_because),
        tuple(_in_order(violations).values()),
    )


def _in_order(by_law: Mapping[Law, Any]) -> dict[Law, Any]:
    return dict(sorted(by_law.items(), key=lambda item: item[0].number))


def _smallest(
    law: Law,
    trial_of: partial[Trial],
    broken: LawBroken,
    shards: Shards,
    tries: int,
) -> tuple[Shards, LawBroken]:
    """Return the smallest case that still breaks the law, and how it does."""

    def breaks(smaller: Shards) -> bool:
        nonlocal broken
        result = verdict(law, trial_of(smaller))
        if isinstance(result, LawBroken):
            broken = result
        return result is broken

    shards = shrunk(shards, breaks, tries)
    return shards, broken


def _violation(law: Law, metric: str, shards: Shards, broken: LawBroken, program: str) -> Violation:
    detail, texts, run = broken.detail, shard_texts(shards), shard_texts(broken.shards)
    if run != texts:
        detail = "\n".join([detail, "That is the run in which", *given_lines(run)])
    got = tuple(map(_text, broken.got))
    return Violation(law, metric, texts, _text(broken.expected), got, detail, program)


def _text(value: Any) -> str:
    if isinstance(value, RankResult):
        value = value.value if value.kind == "value" else value.text
    return value if isinstance(value, str) else brief(value)


def verdict(law: Law, trial: Trial) -> LawBroken | NotJudged | None:
    """Judge a law on one case; return what its check raises, or None if the law holds."""
    if law.not_own and trial.subject.sync != "distmetrics":
        return NotJudged(law.not_own)
    if law.needs_state and trial.subject.is_function:
        return NotJudged("a function holds no state")
    try:
        with quiet():
            law.check(trial)
    except (LawBroken, NotJudged) as reason:
        return reason
    return None


def shrunk(shards: Shards, breaks: Callable[[Shards], bool], tries: int = 80) -> Shards:
    """Return the smallest shards found for which ``breaks`` is true; the largest steps come first.

    ``tries``: smaller cases that are judged on the way, at most.

    >>> from distmetrics.testing.batches import Batch
    >>> shards = ((Batch((1,)), Batch((2,))), (Batch((3,)),), ())
    >>> shrunk(shards, lambda smaller: any(Batch((3,)) in shard for shard in smaller))
    ((Batch(args=(3,), kwargs={}),),)
    """
    steps = _smaller(shards)
    for _ in range(tries):
        smaller = next(steps, None)
        if smaller is None:
            break
        if breaks(smaller):
            shards, steps = smaller, _smaller(smaller)
    return shards


def _smaller(shards: Shards) -> Iterator[Shards]:
    """Yield what is a step smaller: the largest steps first."""
    if len(shards) > 1:
        for rank in reversed(range(len(shards))):
            yield shards[:rank] + shards[rank + 1 :]
    for step in (_half, _without_a_batch, _without_samples):
        for rank, shard in enumerate(shards):
            for smaller in step(shard):
                yield (*shards[:rank], smaller, *shards[rank + 1 :])


def _half(shard: Shard) -> Iterator[Shard]:
    if len(shard) > 1:
        yield shard[: len(shard) // 2]


def _without_a_batch(shard: Shard) -> Iterator[Shard]:
    for at in range(len(shard)):
        yield shard[:at] + shard[at + 1 :]


def _without_samples(shard: Shard) -> Iterator[Shard]:
    for at, batch in enumerate(shard):
        rows = count(batch) or 0
        half = rows // 2
        halves = range(half), range(half, rows)
        for kept in (*halves, range(rows - 1), range(1, rows)):
            if 0 < len(kept) < rows:
                yield (*shard[:at], take(batch, kept), *shard[at + 1 :])
