"""The end of a job in an error: all ranks' files put side by side, and where the ranks part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distmetrics.guard.postmortem_files import Call, Failure, RankReport, read

_WORLD = "world"  # the group that every rank is in
_OLD = 3600.0  # seconds between the files of one job that are hard to believe

_Numbered = Mapping[int, Mapping[int, Call]]  # a group's calls, by number and rank


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first call of a group at which its ranks differ.

    Attributes:
        group: whose call it is.
        number: which of them.
        calls: what the ranks that came called, by rank.
        absent: the ranks that did not come.
    """

    group: str
    number: int
    calls: Mapping[int, Call]
    absent: tuple[int, ...] = ()

    @property
    def ops(self) -> list[str]:
        """The operations that the ranks called, each once."""
        return sorted({call.op for call in self.calls.values()})


@dataclass(frozen=True, slots=True)
class PostMortem:
    """All that the ranks of a job left behind.

    Attributes:
        world_size: of the job.
        reports: of each rank that left a file, by rank; times by the clock of the rank's host.
        missing: the ranks that left no file.
        divergences: of each group whose ranks differ the first call at which they do, the earliest
            first.
    """

    world_size: int
    reports: Mapping[int, RankReport]
    missing: tuple[int, ...]
    divergences: tuple[Divergence, ...]

    @property
    def errors(self) -> dict[Failure, list[int]]:
        """Each error once, with the ranks that raised it; what began the trouble comes first."""
        alike: dict[tuple[str, str], tuple[Failure, list[int]]] = {}
        for rank, report in self.reports.items():
            if error := report.error:
                alike.setdefault((error.kind, error.text), (error, []))[1].append(rank)
        return dict(sorted(alike.values(), key=lambda pair: pair[0].let_down))

    @property
    def old(self) -> list[int]:
        """The ranks whose file is so much older than the newest that it may be an earlier job's."""
        newest = max(report.written for report in self.reports.values())
        return [rank for rank, report in self.reports.items() if report.written < newest - _OLD]


def examine(folder: str | Path) -> PostMortem:
    """Read what the ranks of a job left in a folder, and put it side by side.

    Raises:
        ConfigurationError: there is no folder or no file, a file cannot be read, or they are of
            different jobs.
    """
    return merge(read(Path(folder)))


def merge(reports: Mapping[int, RankReport]) -> PostMortem:
    """Put the reports of the ranks of one job side by side; there must be one at least.

    >>> waits = Call(1, "world", "barrier", "", "train.py:8 in main", 5.0, None)
    >>> first = RankReport(1, 0, 2, "node0", 1, 9.0, None, (), (waits,))
    >>> merge({0: first}).missing
    (1,)
    """
    size = max(report.world_size for report in reports.values())
    missing = tuple(rank for rank in range(size) if rank not in reports)
    reports = dict(sorted(reports.items()))
    calls: defaultdict[str, defaultdict[int, dict[int, Call]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for rank, report in reports.items():
        for call in report.calls:
            calls[call.group][call.number][rank] = call
    stuck = [
        call.number for report in reports.values() for call in report.stuck if call.group == _WORLD
    ]
    divergences = []
    for group, numbered in calls.items():
        since = _since(numbered)
        if group == _WORLD and stuck:  # all ranks are in it, also those that tell of no call
            since = dict.fromkeys(range(size), min(stuck)) | since
        divergences += _first(group, numbered, since)
    divergences = divergences or _refused(reports, calls)
    divergences.sort(key=lambda each: min(call.started for call in each.calls.values()))
    return PostMortem(size, reports, missing, tuple(divergences))


def _since(calls: _Numbered) -> dict[int, int]:
    """Return by rank the first call of a group that its file tells of; it may have made others."""
    since: dict[int, int] = {}
    for number in sorted(calls):
        since = dict.fromkeys(calls[number], number) | since
    return since


def _first(group: str, calls: _Numbered, since: Mapping[int, int]) -> list[Divergence]:
    """Return the first call at which the ranks differ, or []."""
    for number, by_rank in sorted(calls.items()):
        expected = {rank for rank, begin in since.items() if begin <= number}
        one = Divergence(group, number, by_rank, tuple(sorted(expected - by_rank.keys())))
        if one.absent or len(one.ops) > 1:
            return [one]
    return []


def _refused(reports: Mapping[int, RankReport], calls: Mapping[str, _Numbered]) -> list[Divergence]:
    """Return the calls that ranks refused since they send different things.

    Elsewhere different things may be sent as they should.
    """
    last = {
        (report.calls[-1].group, report.calls[-1].number)
        for report in reports.values()
        if report.calls and report.error is not None and report.error.code == "mismatch"
    }
    every = [Divergence(group, number, calls[group][number]) for group, number in sorted(last)]
    return [one for one in every if len({call.detail for call in one.calls.values()}) > 1]
