"""Judges laws on case after case, and keeps the smallest case that breaks each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from distmetrics.errors import InputError
from distmetrics.testing.batches import Shards
from distmetrics.testing.equality import brief
from distmetrics.testing.law import Law, Laws
from distmetrics.testing.report import Report, Violation
from distmetrics.testing.shrink import shrunk
from distmetrics.testing.snippet import shard_texts, snippet
from distmetrics.testing.subject import Subject, Sync, quiet
from distmetrics.testing.trial import LawBroken, NotJudged, RankResult, RunWorld, Trial, worlds
from distmetrics.testing.world import Backend

# Smaller cases that are judged: processes take a hundred times as long.
_TRIES = {"threads": 80, "gloo": 6}


@dataclass
class LawRunner:
    """Judges case after case; a law that was found broken is not judged again.

    Attributes:
        make: what the user said makes the metric; ``subject``: the metric.
        laws: which can be judged, and when values are equal.
        backend: "threads" or "gloo".
        shrinks: whether cases that break a law are made smaller.
        run_world: runs a job in a world.
    """

    make: Any
    subject: Subject
    laws: Laws
    backend: Backend
    shrinks: bool
    run_world: RunWorld
    judged: dict[Law, int] = field(default_factory=dict)
    skipped: dict[Law, str] = field(default_factory=dict)
    violations: dict[Law, Violation] = field(default_factory=dict)

    @classmethod
    @contextlib.contextmanager
    def of(
        cls, make: Any, sync: Sync, laws: Laws, backend: Backend, *, shrinks: bool = True
    ) -> Iterator[LawRunner]:
        """Give a runner; its threads or processes end with the block."""
        subject = Subject.of(make, sync)
        if backend not in _TRIES:
            raise InputError(f"backend must be 'threads' or 'gloo', got {backend!r}")
        with worlds(backend) as run_world:
            yield cls(make, subject, laws, backend, shrinks, run_world)

    def judge(self, shards: Shards, laws: Iterable[Law]) -> None:
        """Judge laws on one case."""
        trial = self._trial(shards)
        for law in laws:
            if law in self.violations:
                continue
            result = verdict(law, trial)
            if isinstance(result, NotJudged):
                self.skipped.setdefault(law, str(result))
                continue
            self.judged[law] = self.judged.get(law, 0) + 1
            if result is not None:
                self.violations[law] = self._violation(law, shards, result)

    def report(self, world_sizes: tuple[int, ...]) -> Report:
        """Return what was found, in the order of the laws."""
        skipped = {law: why for law, why in self.skipped.items() if law not in self.judged}
        return Report(
            self.subject.name,
            self.subject.sync,
            self.backend,
            world_sizes,
            {law: self.judged[law] for law in self.laws if law in self.judged},
            {law: skipped[law] for law in self.laws if law in skipped},
            dict(self.laws.off_because),
            tuple(self.violations[law] for law in self.laws if law in self.violations),
        )

    def _trial(self, shards: Shards) -> Trial:
        return Trial(self.subject, shards, self.laws.equality, self.run_world)

    def _smallest(self, law: Law, shards: Shards, broken: LawBroken) -> tuple[Shards, LawBroken]:
        """Return the smallest case that breaks the law still, and how it does."""
        smallest = broken

        def breaks(smaller: Shards) -> bool:
            nonlocal smallest
            result = verdict(law, self._trial(smaller))
            if isinstance(result, LawBroken):
                smallest = result
            return result is smallest

        return shrunk(shards, breaks, tries=_TRIES[self.backend]), smallest

    def _violation(self, law: Law, shards: Shards, broken: LawBroken) -> Violation:
        if self.shrinks:
            shards, broken = self._smallest(law, shards, broken)
        detail, texts, run = broken.detail, shard_texts(shards), shard_texts(broken.shards)
        if run != texts:
            rows = [f"  rank {rank} was given  {text}" for rank, text in enumerate(run)]
            detail = "\n".join([detail, "That is the run in which", *rows])
        name, sync = self.subject.name, self.subject.sync
        program = snippet(self.make, shards, law, sync, self.backend)
        got = tuple(map(_text, broken.got))
        return Violation(law, name, texts, _text(broken.expected), got, detail, program)


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
