"""What a postmortem found, as text: who left a file, where the ranks part, what was raised, where
each rank was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from distmetrics.errors import compose, who
from distmetrics.guard.postmortem import Divergence, PostMortem
from distmetrics.guard.postmortem_files import Call, RankReport

_TEXTS = 5  # errors that are told in full; the page tells more
_LINES = 40  # groups of ranks that a list tells
_FRAMES = 4  # lines of a stack
_NOTABLE = 0.001  # seconds between clocks that are worth a word


def describe(post: PostMortem) -> str:
    """Return all of it, for a terminal."""
    parts = [summary(post), parting(post)]
    for number, (error, ranks) in enumerate(post.errors.items()):
        if number == _TEXTS:
            parts.append(
                f"{len(post.errors) - _TEXTS} other errors are not shown; --json and --html tell "
                "them"
            )
            break
        parts.append("\n".join([raised(ranks, error.kind, error.site), *_indented(error.text)]))
    lines = {rank: where(report, _FRAMES) for rank, report in post.reports.items()}
    parts.append(_few("where each rank was, innermost first", lines))
    return "\n\n".join(parts)


def summary(post: PostMortem) -> str:
    """Say how many ranks left a file, on which machines, and what is odd about that."""
    count, hosts = len(post.reports), len(post.hosts)
    said = [
        f"{count} of {post.world_size} ranks left a file, on {hosts} host{'s' if hosts > 1 else ''}"
        + (f"; {who(post.missing)} left none" if post.missing else "")
    ]
    if told := clocks(post):
        said.append(told)
    if post.old:
        said.append(
            f"{who(post.old)}: the file is more than an hour older than others; is it of an "
            "earlier job?"
        )
    return "\n".join(said)


def clocks(post: PostMortem) -> str:
    """Say by how much the clocks of the hosts differ, or "" where they don't."""
    if len(post.hosts) == 1:
        return ""
    first = post.hosts[0]
    off = {host: seconds for host, seconds in post.ahead.items() if abs(seconds) >= _NOTABLE}
    said = []
    if off:
        host = max(off, key=lambda name: abs(off[name]))
        side = "ahead of" if off[host] > 0 else "behind"
        rest = f" (the most of {len(off)} hosts)" if len(off) > 1 else ""
        said.append(
            f"the clock of {host} is {abs(off[host]):.3f} s {side} that of {first}{rest}; times "
            "are aligned"
        )
    if alone := [host for host in post.hosts if host not in post.ahead]:
        said.append(
            f"the clock of {_some(alone)} cannot be compared with that of {first}: no call that "
            "both ended"
        )
    return "\n".join(said)


def parting(post: PostMortem) -> str:
    """Say where the ranks part: what each of them did at that call, why that is likely, and what to
    do.
    """
    if not post.divergences:
        return _together(post)
    first, *others = post.divergences
    lines = {
        rank: f"{_told(call)}{', no end' if call.ended is None else ''}"
        for rank, call in first.calls.items()
    }
    for rank in first.absent:
        lines[rank] = place(post.reports[rank]) if rank in post.reports else "left no file"
    likely, do = _advice(post, first)
    notes = [*_waited(post, first), *(f"Later: {_headline(other)}." for other in others[:_TEXTS])]
    return _few(_headline(first), lines, notes=notes, likely=likely, do=do)


def place(report: RankReport) -> str:
    """Say in a few words what a rank did that did not come to a call."""
    error = report.error
    innermost = report.where[0] if report.where else "no line of yours"
    if error is not None and not error.let_down:
        return f"raised {error.kind}  {error.site or innermost}"
    if waits := [call for call in report.calls if call.ended is None]:
        return f"waited in {waits[-1].group} call {waits[-1].number}, {_told(waits[-1])}"
    return f"was elsewhere  {innermost}"


def where(report: RankReport, frames: int | None = None) -> str:
    """Return the stack of a rank on one line, innermost first."""
    shown = report.where[:frames]
    return (
        " ← ".join([*shown, "…"] if len(shown) < len(report.where) else shown)
        or "at no line of yours"
    )


def raised(ranks: Sequence[int], kind: str, site: str) -> str:
    """Say which ranks raised an error."""
    return f"{who(ranks)} raised {kind}" + (f" at {site}" if site else "")


def _told(call: Call) -> str:
    return "  ".join(part for part in (f"{call.op} {call.detail}".strip(), call.site) if part)


def _headline(at: Divergence) -> str:
    if at.absent and len(at.ops) == 1:
        return f"{who(at.absent)} did not come to call {at.number} of {at.group}, {at.ops[0]}"
    if len(at.ops) > 1:
        return f"ranks differ on call {at.number} of {at.group}: {_some(at.ops)}"
    return f"ranks send different things in call {at.number} of {at.group}, {at.ops[0]}"


def _some(names: Sequence[str]) -> str:
    few = 3
    return ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")


def _waited(post: PostMortem, at: Divergence) -> list[str]:
    """Say how long those waited whose call has no end."""
    times = [
        post.reports[rank].written - call.started
        for rank, call in at.calls.items()
        if call.ended is None
    ]
    if not times:
        return []
    least, most = f"{max(0.0, min(times)):.1f}", f"{max(0.0, *times):.1f}"
    return [
        f"Waited without end for {least} s."
        if least == most
        else f"Waited without end for {least} to {most} s."
    ]


def _advice(post: PostMortem, at: Divergence) -> tuple[str, str]:
    """Return the likely cause, and what to do."""
    present = [post.reports[rank] for rank in at.absent if rank in post.reports]
    own = [report for report in present if report.error is not None and not report.error.let_down]
    if own:
        kinds = Counter(report.error.kind for report in own if report.error is not None)
        ranks = who(report.rank for report in own)
        return (
            f"{next(iter(kinds))} on {ranks} came first, and let the others down",
            "mend that error",
        )
    if at.absent and not present:
        return (
            f"{who(at.absent)} was killed (out of memory, a signal, its machine), or left the "
            "file on another machine",
            "look into that rank's log and its machine's; let all ranks write into one folder",
        )
    if at.absent:
        slow = who(report.rank for report in present)
        return (
            f"only some ranks make this call, or {slow} took longer than the others wait",
            "make the call on every rank or on none; `distlint check .` finds branches that only "
            "some ranks take",
        )
    if len(at.ops) > 1:
        return (
            "a branch or a loop that depends on the rank or on its data",
            "make the same calls in the same order on every rank; `distlint check .` finds where "
            "that is not so",
        )
    return (
        "shards of different size or type",
        "send the same shape and dtype on every rank, or use all_gather_cat, which takes "
        "different sizes",
    )


def _together(post: PostMortem) -> str:
    """Say what can be said where no rank differs from another."""
    stuck = {rank: report.stuck[0] for rank, report in post.reports.items() if report.stuck}
    lines = {
        rank: f"{call.group} call {call.number}, {_told(call)}" for rank, call in stuck.items()
    }
    said = "the ranks made the same calls, as far as their files tell"
    if not lines:
        return f"{said}, and none was left waiting"
    return _few(
        f"{said}; these were not done",
        lines,
        likely="a rank or the network between ranks was too slow",
    )


def _few(
    headline: str,
    lines: Mapping[int, str],
    *,
    notes: Sequence[str] = (),
    likely: str = "",
    do: str = "",
) -> str:
    """Compose a text of the groups of ranks that fit, the smallest first to stay: those are the odd
    ones.
    """
    counts = Counter(lines.values())
    kept = {line for line, _ in sorted(counts.items(), key=lambda one: one[1])[: _LINES - 1]}
    kept |= {line for line, _ in counts.most_common(1)}
    shown = {rank: line for rank, line in lines.items() if line in kept}
    left = (
        []
        if len(kept) == len(counts)
        else [f"{len(counts) - len(kept)} other groups of ranks are not shown."]
    )
    return compose(headline, shown, notes=[*left, *notes], likely=likely, do=do)


def _indented(text: str) -> list[str]:
    return [f"  {line}".rstrip() for line in text.splitlines()]
