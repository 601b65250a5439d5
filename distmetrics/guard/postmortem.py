"""The end of a job in an error: all ranks' files put side by side, and where the ranks part."""

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from distmetrics.errors import ConfigurationError, compose, ranks_do, who
from distmetrics.message import MALFORMED

SCHEMA: Final = 1
_WAITED = ("diverged", "peer-lost")  # codes of errors of ranks that waited for others in vain
_LET_DOWN = (*_WAITED, "connection")  # codes of errors that another rank began
_NAME = re.compile(r"rank-(0|[1-9][0-9]*)\.json")


@dataclass(frozen=True, slots=True)
class ReportedCall:
    """One collective call of a rank; times by the clock of its host."""

    number: int  # of the group's calls, the same on all its ranks
    group: str
    op: str  # with its name: all_gather "val/f1"
    detail: str  # float32[10]
    site: str
    started: float
    ended: float | None  # None while the rank waited


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that a rank raised; only one of ours has a likely cause and says what to do.

    Ranks that raised the same have peers, which it is about, and a place of their own.
    """

    kind: str
    code: str
    text: str
    peers: tuple[int, ...] | None = field(compare=False)
    site: str = field(compare=False)
    likely: str | None = None
    do: str | None = None

    @property
    def let_down(self) -> bool:
        """True if another rank began it."""
        return self.code in _LET_DOWN


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank left behind: its stack in the user's code, innermost first, and last calls."""

    schema: Literal[1]
    rank: int
    world_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]  # more are a mistake
    host: str
    pid: int
    written: float
    error: Failure | None
    where: tuple[str, ...]
    calls: tuple[ReportedCall, ...]

    @property
    def stuck(self) -> list[ReportedCall]:
        """The calls that it never got out of, and the one in which it was let down."""
        last = self.calls[-1:] if self.error and self.error.code in _WAITED else ()
        return [call for call in self.calls if call.ended is None or call in last]


def read(folder: Path) -> dict[int, RankReport]:
    """Read every ``rank-<r>.json`` of a folder, in the order of the ranks; skip other files.

    Raises:
        ConfigurationError: there is no folder or no file, a file cannot be read, or they are of
            different jobs.
    """
    paths = {int(m[1]): path for path in folder.glob("*") if (m := _NAME.fullmatch(path.name))}
    if not paths:
        raise ConfigurationError(
            f"the folder {folder} holds no file rank-<number>.json",
            likely="there is no such folder; or the job ended without an error, or its ranks wrote "
            "into another folder, or on another machine",
            do="give the folder in which the ranks left their files",
        )
    reports: dict[int, RankReport] = {}
    problems: dict[int, str] = {}
    for rank in sorted(paths):
        try:
            reports[rank] = _report(rank, paths[rank].read_bytes())
        except (OSError, *MALFORMED) as error:
            problems[rank] = f"is not as this distmetrics writes it: {error}"
    if problems:
        raise ConfigurationError(
            f"{len(problems)} of the files in {folder} cannot be used",
            per_rank=problems,
            likely="a rank was killed while it wrote, or another version of distmetrics wrote them",
            do="move these files away: their ranks then count as ranks that left no file",
        )
    sizes = {rank: f"is of a job of {each.world_size} ranks" for rank, each in reports.items()}
    if len({*sizes.values()}) > 1:
        raise ConfigurationError(
            f"the files in {folder} are of jobs of different size",
            per_rank=sizes,
            likely="files of an earlier job are still in the folder",
            do="give each job a folder of its own, or move the older files away",
        )
    return reports


def _report(rank: int, data: bytes) -> RankReport:
    report = msgspec.json.decode(data, type=RankReport)
    if report.rank != rank or rank >= report.world_size:
        raise ValueError(f"it is of rank {report.rank} of {report.world_size}")
    return report


_WORLD = "world"  # the group that every rank is in
_LATER = 5  # groups in which the ranks part later
_ERRORS = 5
_GROUPS = 40  # of equal ranks that a list tells
_FRAMES = 4  # lines of a stack


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first call of a group at which its ranks differ; ``absent`` ranks did not come to it."""

    group: str
    number: int
    calls: Mapping[int, ReportedCall]
    absent: tuple[int, ...] = ()

    @property
    def ops(self) -> list[str]:
        """The operations that the ranks called, each once."""
        return sorted({call.op for call in self.calls.values()})

    @property
    def began(self) -> float:
        """When the first rank came to it."""
        return min(call.started for call in self.calls.values())


@dataclass(frozen=True, slots=True)
class PostMortem:
    """All that the ranks of a job left behind; divergences of groups, the earliest first."""

    world_size: int
    reports: Mapping[int, RankReport]
    missing: tuple[int, ...]
    divergences: tuple[Divergence, ...]

    @property
    def errors(self) -> dict[Failure, list[int]]:
        """Each error once, with the ranks that raised it; what began the trouble comes first."""
        ranks_of: defaultdict[Failure, list[int]] = defaultdict(list)
        for rank, report in sorted(self.reports.items(), key=lambda pair: pair[1].written):
            if report.error:
                ranks_of[report.error].append(rank)
        first = sorted(ranks_of.items(), key=lambda pair: pair[0].let_down)
        return {error: sorted(ranks) for error, ranks in first}


def merge(reports: Mapping[int, RankReport]) -> PostMortem:
    """Put the reports of one job side by side, in the order of the ranks; one at least.

    >>> waits = ReportedCall(1, "world", "barrier", "", "train.py:8 in main", 5.0, None)
    >>> first = RankReport(1, 0, 2, "node0", 1, 9.0, None, (), (waits,))
    >>> merge({0: first}).missing
    (1,)
    """
    size = max(report.world_size for report in reports.values())
    calls: defaultdict[tuple[str, int], dict[int, ReportedCall]] = defaultdict(dict)
    # By group and rank the first call that the rank's file tells of; it may have made others.
    since: defaultdict[str, dict[int, int]] = defaultdict(dict)
    stuck = []
    for rank, report in reports.items():
        for call in report.calls:
            calls[call.group, call.number][rank] = call
            since[call.group].setdefault(rank, call.number)
        stuck += [call.number for call in report.stuck if call.group == _WORLD]
    for rank in range(size) if stuck else ():  # all are in it, also those that tell of no call
        since[_WORLD].setdefault(rank, min(stuck))
    first: dict[str, Divergence] = {}
    for (group, number), by_rank in sorted(calls.items()):
        expected = {rank for rank, begin in since[group].items() if begin <= number}
        one = Divergence(group, number, by_rank, tuple(sorted(expected - by_rank.keys())))
        if one.absent or len(one.ops) > 1:
            first.setdefault(group, one)
    divergences = sorted(first.values(), key=lambda one: one.began)
    missing = tuple(rank for rank in range(size) if rank not in reports)
    return PostMortem(size, reports, missing, tuple(divergences))


def describe(post: PostMortem) -> str:
    """Return all of it, for a terminal."""
    came = f"{len(post.reports)} of {post.world_size} ranks left a file"
    if post.missing:
        came += f"; {who(post.missing)} left none"
    parts = [came, parting(post)]
    errors = [*post.errors.items()]
    for error, ranks in errors[:_ERRORS]:
        site = f" at {error.site}" if error.site else ""
        text = textwrap.indent(error.text, "  ")
        parts.append(f"{who(ranks)} raised {error.kind}{site}\n{text}")
    if left := errors[_ERRORS:]:
        parts.append(f"{len(left)} other errors are not shown; --json tells them")
    where = {rank: " ← ".join(each.where[:_FRAMES]) for rank, each in post.reports.items()}
    parts.append(_listed("where each rank was, innermost first", where))
    return "\n\n".join(parts)


def parting(post: PostMortem) -> str:
    """Return where the ranks part: what each did at that call, the likely cause, what to do."""
    if not post.divergences:
        lines = {rank: _elsewhere(report) for rank, report in post.reports.items() if report.stuck}
        likely, do = _advice(post, None) if lines else ("", "")
        text = "the ranks came to the same calls, as far as their files tell"
        return _listed(text, lines, likely=likely, do=do)
    first, *later = post.divergences
    lines = {
        rank: _call(call) + ", no end" * (call.ended is None) for rank, call in first.calls.items()
    }
    for rank in first.absent:
        lines[rank] = _elsewhere(post.reports[rank]) if rank in post.reports else "left no file"
    notes = [f"Later: {_headline(each)}." for each in later[:_LATER]]
    likely, do = _advice(post, first)
    return _listed(_headline(first), lines, notes, likely=likely, do=do)


def _elsewhere(report: RankReport) -> str:
    """Return in a few words what a rank did that did not come to a call."""
    innermost = report.where[0] if report.where else "no line of yours"
    error = report.error
    if error and not error.let_down:
        return f"raised {error.kind}  {error.site or innermost}"
    if report.stuck:
        call = report.stuck[-1]
        return f"waited in {call.group} call {call.number}, {_call(call)}"
    return f"was elsewhere  {innermost}"


def _call(call: ReportedCall) -> str:
    return f"{call.op} {call.detail}".strip() + (f"  {call.site}" if call.site else "")


def _headline(at: Divergence) -> str:
    named = f"call {at.number} of {at.group}"
    if len(at.ops) > 1:
        return f"ranks differ on {named}: {', '.join(at.ops)}"
    return f"{who(at.absent)} did not come to {named}, {at.ops[0]}"


def _advice(post: PostMortem, at: Divergence | None) -> tuple[str, str]:
    """Return the likely cause, and what to do; as the error says that began it, if there is one."""
    for error, ranks in post.errors.items():
        if error.do is not None:
            return error.likely or "", error.do
        if not error.let_down:
            text = f"{error.kind} on {who(ranks)} came first, and let the others down"
            return text, "mend that error"
    if at is None:
        return "the network between the ranks is cut or very slow", "run `distmetrics doctor`"
    left = {rank: post.reports[rank] for rank in at.absent if rank in post.reports}
    if at.absent and not left:
        likely = (
            "a rank without a file was killed at once (out of memory, SIGKILL), came to its end, "
            "has not imported distmetrics, or wrote on another machine"
        )
        do = f"look into the log of {who(at.absent)}, and of the machine"
        return likely, f"{do}; let all ranks write into one folder"
    if at.absent and not any(report.stuck for report in left.values()):
        return (
            f"{ranks_do([*left], 'was slow, or stuck')} at the line above",
            "see what is done there",
        )
    return "a branch or a loop that not all ranks take", (
        "make the same calls in the same order on every rank; `distlint check .` finds branches "
        "that only some ranks take"
    )


def _listed(
    headline: str, lines: Mapping[int, str], notes: Sequence[str] = (), **advice: str
) -> str:
    """Compose a text of the ranks' lines; of many different ones the most and the least common."""
    common = [line for line, _ in Counter(lines.values()).most_common()]
    kept = {*common[:1], *common[-_GROUPS:]}
    shown = {rank: line for rank, line in lines.items() if line in kept}
    if left := len(common) - len(kept):
        notes = [f"{left} other groups of ranks are not shown.", *notes]
    return compose(headline, shown, notes=notes, **advice)
