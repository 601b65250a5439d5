"""``python -m distmetrics postmortem DIR``: what the ranks left when a job ended in an error.

All ranks' files are put side by side, to find where the ranks part.
"""

import json
import re
import textwrap
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from distmetrics.errors import ConfigurationError, compose, who
from distmetrics.guard.report import Failure, RankReport, ReportedCall
from distmetrics.message import MALFORMED

_NAME = re.compile(r"rank-(0|[1-9][0-9]*)\.json")
_WORLD = "world"  # the group that every rank is in
_ERRORS = 5  # that a text tells
_FRAMES = 4  # lines of a stack


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
            report = msgspec.json.decode(paths[rank].read_bytes(), type=RankReport)
        except (OSError, *MALFORMED) as error:
            problems[rank] = f"is not as this distmetrics writes it: {error}"
            continue
        size = next(iter(reports.values()), report).world_size
        if report.world_size != size:
            problems[rank] = f"is of a job of different size, {report.world_size} and not {size}"
        elif report.rank != rank or rank >= size:
            problems[rank] = f"is of rank {report.rank} of {size}"
        reports[rank] = report
    if problems:
        raise ConfigurationError(
            f"{len(problems)} of the files in {folder} cannot be used",
            per_rank=problems,
            likely="a rank was killed while it wrote, another version of distmetrics wrote them, "
            "or they are of an earlier job",
            do="move these files away: their ranks then count as ranks that left no file",
        )
    return reports


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
    calls: defaultdict[tuple[str, int, int], dict[int, ReportedCall]] = defaultdict(dict)
    # By group and rank the first call that the rank's file tells of; it may have made others.
    since: defaultdict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    stuck = []
    for rank, report in reports.items():
        for call in report.calls:
            calls[call.group, call.number, call.part][rank] = call
            since[call.group].setdefault(rank, (call.number, call.part))
        stuck += [(call.number, call.part) for call in report.stuck if call.group == _WORLD]
    for rank in range(size) if stuck else ():  # all are in it, also those that tell of no call
        since[_WORLD].setdefault(rank, min(stuck))
    first: dict[str, Divergence] = {}
    for (group, number, part), by_rank in sorted(calls.items()):
        expected = {rank for rank, begin in since[group].items() if begin <= (number, part)}
        one = Divergence(group, number, by_rank, tuple(sorted(expected - by_rank.keys())))
        if one.absent or len(one.ops) > 1:
            first.setdefault(group, one)
    divergences = sorted(
        first.values(), key=lambda one: min(call.started for call in one.calls.values())
    )
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
    parts.append(compose("where each rank was, innermost first", where))
    return "\n\n".join(parts)


def parting(post: PostMortem) -> str:
    """Return where the ranks part: what each did at that call, the likely cause, what to do."""
    first = next(iter(post.divergences), None)
    likely, do = _advice(post, first)
    if first is None:
        lines = {rank: _elsewhere(report) for rank, report in post.reports.items() if report.stuck}
        text = "the ranks came to the same calls, as far as their files tell"
        return compose(text, lines, likely=likely, do=do)
    named, ops = f"call {first.number} of {first.group}", ", ".join(first.ops)
    text = f"{who(first.absent)} did not come to {named}, {ops}"
    if len(first.ops) > 1:
        text = f"ranks differ on {named}: {ops}"
    lines = {
        rank: _call(call) + ", no end" * (call.ended is None) for rank, call in first.calls.items()
    }
    for rank in first.absent:
        lines[rank] = _elsewhere(post.reports[rank]) if rank in post.reports else "left no file"
    return compose(text, lines, likely=likely, do=do)


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


def _advice(post: PostMortem, at: Divergence | None) -> tuple[str, str]:
    """Return the likely cause, and what to do."""
    for error, ranks in post.errors.items():
        if not error.let_down:
            return f"{error.kind} on {who(ranks)} came first", "mend that error"
    if at is None:
        return "", ""
    if silent := {*at.absent} & {*post.missing}:
        if any(silent & {*error.peers} for error in post.errors):
            likely = f"{who(silent)} ended as the error below says"
            return likely, f"do what it says; the log of {who(silent)} may tell more"
        likely = (
            "a rank without a file was killed at once (out of memory, SIGKILL), came to its end, "
            "has not imported distmetrics, or wrote on another machine"
        )
        do = f"look into the log of {who(silent)}, and of the machine"
        return likely, f"{do}; let all ranks write into one folder"
    return (
        "a branch or a loop that not all ranks take, or a rank that was slow or stuck",
        "see what is done at the lines above; make the same calls in the same order on every rank",
    )


def postmortem(*, folder: Path, as_json: bool) -> int:
    """Print where each rank of a job was; return 0.

    Args:
        folder: in which the ranks left their files.
        as_json: print JSON.

    Raises:
        ConfigurationError: there is nothing to read, or it makes no sense.
    """
    post = merge(read(folder))
    print(json.dumps(to_dict(post), indent=1) if as_json else describe(post))  # noqa: T201
    return 0


def to_dict(post: PostMortem) -> dict[str, Any]:
    """Return the postmortem for machines; the calls themselves are in the ranks' files."""
    errors = [asdict(error) | {"ranks": ranks} for error, ranks in post.errors.items()]
    ranks = []
    for rank, report in post.reports.items():
        pending = [call for call in report.calls if call.ended is None]
        ranks.append(
            {
                "rank": rank,
                "host": report.host,
                "pid": report.pid,
                "raised": report.error.kind if report.error else None,
                "where": report.where,
                "waits": [{"group": call.group, "number": call.number} for call in pending],
            }
        )
    return {
        "world_size": post.world_size,
        "missing": post.missing,
        "text": parting(post),
        "divergences": [asdict(each) for each in post.divergences],
        "errors": errors,
        "ranks": ranks,
    }
