"""What a check has found: which laws were judged, which not and why, and every violation."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from distmetrics.testing.law import Law


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
        law = self.law
        lines = [f"{self.metric} breaks the law {law.name} ({law.number}): {law.title}", ""]
        lines += given_lines(self.shards)
        lines.append(f"  expected  {self.expected}")
        lines += [f"  rank {rank} got  {value}" for rank, value in enumerate(self.got)]
        lines += [textwrap.indent(self.detail, "  "), "", "To see it again:"]
        return "\n".join([*lines, textwrap.indent(self.snippet, "    ")])

    def to_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        texts = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**texts, "law": self.law.name, "number": self.law.number}


def given_lines(shards: Sequence[str]) -> list[str]:
    """Return a line for each rank with its batches."""
    return [f"  rank {rank} was given  {shard}" for rank, shard in enumerate(shards)]


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
        """True if no law was broken."""
        return not self.violations

    def __str__(self) -> str:
        sync = "synced by distmetrics" if self.sync == "distmetrics" else "by its own sync"
        worlds = ", ".join(map(str, self.world_sizes))
        kept = f"{len(self.judged) - len(self.violations)} of {len(self.judged)} laws hold"
        lines = [f"{self.metric}, {sync}, {worlds} ranks on {self.backend}: {kept}"]
        lines += [f"  skipped  {law.name}: {why}" for law, why in self.skipped.items()]
        lines += [f"  off      {law.name}: {why}" for law, why in self.off.items()]
        return "\n\n".join(["\n".join(lines), *map(str, self.violations)])

    def to_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        contents = {each.name: getattr(self, each.name) for each in fields(self)}
        for kind in ("judged", "skipped", "off"):
            by_law = contents[kind].items()
            contents[kind] = {law.name: what for law, what in by_law}
        contents["violations"] = [violation.to_dict() for violation in self.violations]
        return {**contents, "ok": self.ok, "text": str(self)}


listeners: list[Callable[[Report], None]] = []  # called with every report that is made


def columns(reports: Sequence[Report]) -> list[Law]:
    """Return the laws that any of the reports speaks of, in order."""
    spoken: set[Law] = set()
    for report in reports:
        spoken.update(report.judged, report.skipped, report.off)
    return sorted(spoken, key=lambda law: law.number)
