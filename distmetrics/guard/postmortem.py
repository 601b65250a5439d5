"""The end of a job in an error: all ranks' files put side by side, and where the ranks part."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distmetrics.guard.postmortem_files import read
from distmetrics.liveness.report_file import Call, Failure, RankReport

_WORLD = "world"  # the group that every rank is in
_OLD = 3600.0  # seconds between the files of one job that are hard to believe


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
        ranks_of: defaultdict[Failure, list[int]] = defaultdict(list)
        for rank, report in self.reports.items():
            if report.error:
                ranks_of[report.error].append(rank)
        return dict(sorted(ranks_of.items(), key=lambda pair: pair[0].let_down))

    @property
    def old(self) -> list[int]:
        """The ranks whose file is so much older than the newest that it may be an earlier job's."""
        written = {rank: report.written for rank, report in self.reports.items()}
        newest = max(written.values())
        return [rank for rank, when in written.items() if when < newest - _OLD]


def examine(folder: Path) -> PostMortem:
    """Read what the ranks of a job left in a folder, and put it side by side.

    Raises:
        ConfigurationError: there is no folder or no file, a file cannot be read, or they are of
            different jobs.
    """
    return merge(read(folder))


def merge(reports: Mapping[int, RankReport]) -> PostMortem:
    """Put the reports of one job side by side, in the order of the ranks; one at least.

    >>> waits = Call(1, "world", "barrier", "", "train.py:8 in main", 5.0, None)
    >>> first = RankReport(1, 0, 2, "node0", 1, 9.0, None, (), (waits,))
    >>> merge({0: first}).missing
    (1,)
    """
    size = max(report.world_size for report in reports.values())
    missing = tuple(rank for rank in range(size) if rank not in reports)
    calls: defaultdict[str, dict[int, dict[int, Call]]] = defaultdict(dict)
    # By group and rank the first call that the rank's file tells of; it may have made others.
    since: defaultdict[str, dict[int, int]] = defaultdict(dict)
    stuck = []
    for rank, report in reports.items():
        for call in report.calls:
            calls[call.group].setdefault(call.number, {})[rank] = call
            since[call.group].setdefault(rank, call.number)
        stuck += [call.number for call in report.stuck if call.group == _WORLD]
    if stuck:
        # All ranks are in it, also those that tell of no call.
        for rank in range(size):
            since[_WORLD].setdefault(rank, min(stuck))
    divergences: list[Divergence] = []
    for group, of_group in calls.items():
        divergences += _first_divergence(group, of_group, since[group])
    divergences.sort(key=lambda each: min(call.started for call in each.calls.values()))
    return PostMortem(size, reports, missing, tuple(divergences))


def _first_divergence(
    group: str, calls: Mapping[int, Mapping[int, Call]], since: Mapping[int, int]
) -> list[Divergence]:
    """Return the first call of a group at which its ranks differ, or []."""
    for number, by_rank in sorted(calls.items()):
        expected = {rank for rank, begin in since.items() if begin <= number}
        absent = sorted(expected - by_rank.keys())
        one = Divergence(group, number, by_rank, tuple(absent))
        if absent or len(one.ops) > 1:
            return [one]
    return []
