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
from distmetrics.testing.report import Report, Violation, given_lines
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
        tries: how many smaller cases are judged, at most, of one that breaks a law.
        run_world: runs a job in a world.
    """

    make: Any
    subject: Subject
    laws: Laws
    backend: Backend
    tries: int
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
            yield cls(make, subject, laws, backend, _TRIES[backend] * shrinks, run_world)

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
        skipped = {law: self.skipped[law] for law in self.laws if law in self.skipped}
        judged = {law: self.judged[law] for law in self.laws if law in self.judged}
        return Report(
            self.subject.name,
            self.subject.sync,
            self.backend,
            world_sizes,
            judged,
            {law: why for law, why in skipped.items() if law not in judged},
            dict(self.laws.off_because),
            tuple(self.violations[law] for law in self.laws if law in self.violations),
        )

    def _trial(self, shards: Shards) -> Trial:
        return Trial(self.subject, shards, self.laws.equality, self.run_world)

    def _violation(self, law: Law, shards: Shards, broken: LawBroken) -> Violation:
        """Return the violation, by the smallest case that still breaks the law."""

        def breaks(smaller: Shards) -> bool:
            nonlocal broken
            result = verdict(law, self._trial(smaller))
            if isinstance(result, LawBroken):
                broken = result
            return result is broken

        shards = shrunk(shards, breaks, self.tries)
        detail, texts, run = broken.detail, shard_texts(shards), shard_texts(broken.shards)
        if run != texts:
            detail = "\n".join([detail, "That is the run in which", *given_lines(run)])
        return Violation(
            law,
            self.subject.name,
            texts,
            _text(broken.expected),
            tuple(map(_text, broken.got)),
            detail,
            snippet(self.make, shards, law, self.subject.sync, self.backend),
        )


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
