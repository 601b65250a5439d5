"""What a job left behind when it ended in an error: all ranks' files put side by side, and where
the ranks part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distmetrics.guard.postmortem_clocks import ahead, set_back
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
    absent: tuple[int, ...]

    @property
    def at(self) -> float:
        """When the first rank came, in seconds since 1970."""
        return min(call.started for call in self.calls.values())

    @property
    def ops(self) -> list[str]:
        """The operations that the ranks called, each once."""
        return sorted({call.op for call in self.calls.values()})


@dataclass(frozen=True, slots=True)
class PostMortem:
    """All that the ranks of a job left behind.

    Attributes:
        world_size: of the job.
        reports: of each rank that left a file, by rank; all times by the clock of the first rank's
            host.
        missing: the ranks that left no file.
        divergences: of each group whose ranks differ the first call at which they do, earliest
            first.
        ahead: by how many seconds each host's clock is ahead; a host that could not be compared is
            not in it.
    """

    world_size: int
    reports: Mapping[int, RankReport]
    missing: tuple[int, ...]
    divergences: tuple[Divergence, ...]
    ahead: Mapping[str, float]

    @property
    def hosts(self) -> list[str]:
        """Names of the machines, in the order of the ranks."""
        return list(dict.fromkeys(report.host for report in self.reports.values()))

    @property
    def errors(self) -> dict[Failure, list[int]]:
        """Each error once, with the ranks that raised it; what began the trouble comes first."""
        found: dict[tuple[str, str], tuple[Failure, list[int]]] = {}
        for rank, report in self.reports.items():
            if report.error is not None:
                found.setdefault((report.error.kind, report.error.text), (report.error, []))[
                    1
                ].append(rank)
        return dict(sorted(found.values(), key=lambda one: one[0].let_down))

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
    >>> both = [RankReport(rank, 2, "node0", 1, 9.0, None, (), calls) for rank, calls in enumerate([(waits,), ()])]
    >>> merge(dict(enumerate(both))).divergences[0].absent
    (1,)
    """
    reports = dict(sorted(reports.items()))
    clocks = ahead(reports.values())
    aligned = {
        rank: set_back(report, clocks.get(report.host, 0.0)) for rank, report in reports.items()
    }
    size = max(report.world_size for report in reports.values())
    missing = tuple(rank for rank in range(size) if rank not in reports)
    return PostMortem(size, aligned, missing, _divergences(aligned, missing), clocks)


def _divergences(
    reports: Mapping[int, RankReport], missing: tuple[int, ...]
) -> tuple[Divergence, ...]:
    groups: defaultdict[str, defaultdict[int, dict[int, Call]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    stuck: dict[str, int] = {}  # by group the first call that a rank did not get out of
    for rank, report in reports.items():
        for call in report.calls:
            groups[call.group][call.number][rank] = call
        for call in report.stuck:
            stuck[call.group] = min(call.number, stuck.get(call.group, call.number))
    found = []
    for group, calls in groups.items():
        since = _since(calls)
        if group == _WORLD and group in stuck:
            since = dict.fromkeys([*reports, *missing], stuck[group]) | since
        if first := _first(group, calls, since):
            found.append(first)
    found = found or _mismatches(reports, groups)
    return tuple(sorted(found, key=lambda one: (one.at, one.group)))


def _since(calls: _Numbered) -> dict[int, int]:
    """Return by rank the first call of a group that its file tells of; whether it made earlier ones
    is not known.
    """
    since: dict[int, int] = {}
    for number in sorted(calls):
        for rank in calls[number]:
            since.setdefault(rank, number)
    return since


def _first(group: str, calls: _Numbered, since: Mapping[int, int]) -> Divergence | None:
    for number in sorted(calls):
        made = calls[number]
        absent = sorted(
            rank for rank, begin in since.items() if begin <= number and rank not in made
        )
        if absent or len({call.op for call in made.values()}) > 1:
            return Divergence(group, number, dict(sorted(made.items())), tuple(absent))
    return None


def _mismatches(
    reports: Mapping[int, RankReport], groups: Mapping[str, _Numbered]
) -> list[Divergence]:
    """Return the calls that ranks refused since they send different things; elsewhere that may be
    as it should.
    """
    last = {
        (report.calls[-1].group, report.calls[-1].number)
        for report in reports.values()
        if report.calls and report.error is not None and report.error.code == "mismatch"
    }
    found = [Divergence(group, number, groups[group][number], ()) for group, number in sorted(last)]
    return [one for one in found if len({call.detail for call in one.calls.values()}) > 1]
