"""A postmortem as text: who left a file, where the ranks part, the errors, where each rank was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from distmetrics.errors import compose, who
from distmetrics.guard.postmortem import Divergence, PostMortem
from distmetrics.guard.postmortem_files import Call, RankReport

_ERRORS = 5  # that are told in full; the page tells more
_GROUPS = 40  # of equal ranks that a list tells
_FRAMES = 4  # lines of a stack
_ONLY_SOME = "`distlint check .` finds branches that only some ranks take"


def describe(post: PostMortem) -> str:
    """Return all of it, for a terminal."""
    parts = [summary(post), parting(post)]
    for error, ranks in [*post.errors.items()][:_ERRORS]:
        lines = [raised(ranks, error.kind, error.site), *error.text.splitlines()]
        parts.append("\n  ".join(lines).replace("\n  \n", "\n\n"))
    if (left := len(post.errors) - _ERRORS) > 0:
        parts.append(f"{left} other errors are not shown; --json and --html tell them")
    lines_of = {rank: where(report, _FRAMES) for rank, report in post.reports.items()}
    parts.append(_listed("where each rank was, innermost first", lines_of))
    return "\n\n".join(parts)


def summary(post: PostMortem) -> str:
    """Return how many ranks left a file, on how many machines, and what is odd about that."""
    hosts = len({report.host for report in post.reports.values()})
    text = f"{len(post.reports)} of {post.world_size} ranks left a file, on {hosts} host"
    text += "s" if hosts > 1 else ""
    if post.missing:
        text += f"; {who(post.missing)} left none"
    if post.old:
        text += f"\n{who(post.old)}: the file is more than an hour older than others; "
        text += "is it of an earlier job?"
    return text


def parting(post: PostMortem) -> str:
    """Return where the ranks part: what each did at that call, the likely cause, what to do."""
    if not post.divergences:
        return _together(post)
    first, *later = post.divergences
    lines = {
        rank: _call(call) + (", no end" if call.ended is None else "")
        for rank, call in first.calls.items()
    }
    for rank in first.absent:
        lines[rank] = elsewhere(post.reports[rank]) if rank in post.reports else "left no file"
    notes = [f"Later: {_headline(each)}." for each in later[:_ERRORS]]
    waits = [
        post.reports[rank].written - call.started
        for rank, call in first.calls.items()
        if call.ended is None
    ]
    if waits:
        notes.insert(0, f"Waited without end for {max(0.0, *waits):.1f} s.")
    likely, do = _advice(post, first)
    return _listed(_headline(first), lines, notes=notes, likely=likely, do=do)


def elsewhere(report: RankReport) -> str:
    """Return in a few words what a rank did that did not come to a call."""
    innermost = report.where[0] if report.where else "no line of yours"
    if report.error is not None and not report.error.let_down:
        return f"raised {report.error.kind}  {report.error.site or innermost}"
    for call in report.calls[::-1]:
        if call.ended is None:
            return f"waited in {call.group} call {call.number}, {_call(call)}"
    return f"was elsewhere  {innermost}"


def where(report: RankReport, frames: int) -> str:
    """Return the stack of a rank on one line, innermost first."""
    more = ("…",) if len(report.where) > frames else ()
    return " ← ".join([*report.where[:frames], *more]) or "at no line of yours"


def raised(ranks: Sequence[int], kind: str, site: str) -> str:
    """Return which ranks raised an error."""
    return f"{who(ranks)} raised {kind}" + (f" at {site}" if site else "")


def _call(call: Call) -> str:
    return f"{call.op} {call.detail}".strip() + (f"  {call.site}" if call.site else "")


def _headline(at: Divergence) -> str:
    named = f"call {at.number} of {at.group}"
    if len(at.ops) > 1:
        return f"ranks differ on {named}: {', '.join(at.ops)}"
    if at.absent:
        return f"{who(at.absent)} did not come to {named}, {at.ops[0]}"
    return f"ranks send different things in {named}, {at.ops[0]}"


def _advice(post: PostMortem, at: Divergence) -> tuple[str, str]:
    """Return the likely cause, and what to do."""
    present = [post.reports[rank] for rank in at.absent if rank in post.reports]
    for report in present:
        if report.error is not None and not report.error.let_down:
            text = f"{report.error.kind} on rank {report.rank} came first, and let the others down"
            return text, "mend that error"
    slow = who(report.rank for report in present)
    if at.absent and not present:
        likely = f"{who(at.absent)} was killed (out of memory, a signal, its machine), or left "
        likely += "the file on another machine"
        do = "look into that rank's log and its machine's; let all ranks write into one folder"
    elif at.absent:
        likely = f"only some ranks make this call, or {slow} took longer than the others wait"
        do = f"make the call on every rank or on none; {_ONLY_SOME}"
    elif len(at.ops) > 1:
        likely = "a branch or a loop that depends on the rank or on its data"
        do = f"make the same calls in the same order on every rank; {_ONLY_SOME}"
    else:
        likely = "shards of different size or type"
        do = "send the same shape and dtype on every rank, or use all_gather_cat, which takes "
        do += "different sizes"
    return likely, do


def _together(post: PostMortem) -> str:
    """Return what can be told where no rank differs from another."""
    text = "the ranks made the same calls, as far as their files tell"
    stuck = {rank: report.stuck[0] for rank, report in post.reports.items() if report.stuck}
    if not stuck:
        return f"{text}, and none was left waiting"
    lines = {
        rank: f"{call.group} call {call.number}, {_call(call)}" for rank, call in stuck.items()
    }
    likely = "a rank or the network between ranks was too slow"
    return _listed(f"{text}; these were not done", lines, likely=likely)


def _listed(
    headline: str,
    lines: Mapping[int, str],
    *,
    notes: Sequence[str] = (),
    likely: str = "",
    do: str = "",
) -> str:
    """Compose a text of the ranks' lines; of many different ones the most and the least common."""
    common = [line for line, _ in Counter(lines.values()).most_common()]
    kept = {*common[:1], *common[-_GROUPS:]}
    shown = {rank: line for rank, line in lines.items() if line in kept}
    if left := len(common) - len(kept):
        notes = [f"{left} other groups of ranks are not shown.", *notes]
    return compose(headline, shown, notes=notes, likely=likely, do=do)
