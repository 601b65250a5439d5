"""What a check has found: which laws were judged, which not and why, and every violation with its
smallest case.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distmetrics.testing.laws import Law


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that a metric breaks, and the smallest case that was found.

    Attributes:
        law: the law.
        metric: the metric's name.
        shards: each rank's batches, as text.
        expected: what every rank should have got; ``got``: what each has.
        detail: in what they differ.
        snippet: a program of a few lines that shows it again.
    """

    law: Law
    metric: str
    shards: tuple[str, ...]
    expected: str
    got: tuple[str, ...]
    detail: str
    snippet: str

    def __str__(self) -> str:
        lines = [
            f"{self.metric} breaks the law {self.law.name} ({self.law.number}): {self.law.title}",
            "",
        ]
        lines += [f"  rank {rank} was given  {shard}" for rank, shard in enumerate(self.shards)]
        lines += [f"  expected  {self.expected}"]
        lines += [f"  rank {rank} got  {value}" for rank, value in enumerate(self.got)]
        lines += [
            textwrap.indent(self.detail, "  "),
            "",
            "To see it again:",
            textwrap.indent(self.snippet, "    "),
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {
            "law": self.law.name,
            "number": self.law.number,
            "metric": self.metric,
            "shards": list(self.shards),
            "expected": self.expected,
            "got": list(self.got),
            "detail": self.detail,
            "snippet": self.snippet,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked of one metric.

    Attributes:
        metric: its name.
        sync: whose sync was judged: "distmetrics", or the metric's "own".
        backend: "threads" or "gloo".
        world_sizes: numbers of ranks.
        judged: how many cases each law was judged on.
        skipped: why a law was judged on no case.
        off: laws that were declared off, and why.
        violations: of different laws each.
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
        """Whether no law was broken."""
        return not self.violations

    def __str__(self) -> str:
        worlds = ", ".join(map(str, self.world_sizes))
        head = f"{self.metric}, {_SYNC[self.sync]}, {worlds} ranks on {self.backend}"
        kept = len(self.judged) - len(self.violations)
        lines = [f"{head}: {kept} of {len(self.judged)} laws hold"]
        lines += [f"  skipped  {law.name}: {why}" for law, why in self.skipped.items()]
        lines += [f"  off      {law.name}: {why}" for law, why in self.off.items()]
        return "\n\n".join(["\n".join(lines), *map(str, self.violations)])

    def to_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {
            "metric": self.metric,
            "sync": self.sync,
            "backend": self.backend,
            "world_sizes": list(self.world_sizes),
            "ok": self.ok,
            "judged": {law.name: cases for law, cases in self.judged.items()},
            "skipped": {law.name: why for law, why in self.skipped.items()},
            "off": {law.name: why for law, why in self.off.items()},
            "violations": [violation.to_dict() for violation in self.violations],
        }


_SYNC = {"distmetrics": "synced by distmetrics", "own": "by its own sync"}
listeners: list[Callable[[Report], None]] = []  # called with every report that is made


def tell(report: Report) -> None:
    """Hand a report to whoever listens."""
    for listener in tuple(listeners):
        listener(report)


def columns(reports: Sequence[Report]) -> list[Law]:
    """Return the laws that any of the reports speaks of, in order."""
    spoken = {law for report in reports for law in (*report.judged, *report.skipped, *report.off)}
    return sorted(spoken, key=lambda law: law.number)
