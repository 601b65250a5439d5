"""A postmortem as text: who left a file, where the ranks part, the errors, where each rank was."""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from distmetrics.errors import compose, ranks_do, who
from distmetrics.guard.postmortem import Divergence, PostMortem
from distmetrics.liveness.report_file import Call, RankReport

_LATER = 5  # groups in which the ranks part later
_GROUPS = 40  # of equal ranks that a list tells
_FRAMES = 4  # lines of a stack
_ONLY_SOME = "`distlint check .` finds branches that only some ranks take"


def describe(post: PostMortem, most_errors: int = 5) -> str:
    """Return all of it, for a terminal."""
    parts = [summary(post), parting(post)]
    errors = [*post.errors.items()]
    for error, ranks in errors[:most_errors]:
        site = f" at {error.site}" if error.site else ""
        text = textwrap.indent(error.text, "  ")
        parts.append(f"{who(ranks)} raised {error.kind}{site}\n{text}")
    if left := errors[most_errors:]:
        parts.append(f"{len(left)} other errors are not shown; --json tells them")
    lines_of = {rank: where(report, _FRAMES) for rank, report in post.reports.items()}
    parts.append(_listed("where each rank was, innermost first", lines_of))
    return "\n\n".join(parts)


def summary(post: PostMortem) -> str:
    """Return how many ranks left a file, and what is odd about that."""
    text = f"{len(post.reports)} of {post.world_size} ranks left a file"
    if post.missing:
        text += f"; {who(post.missing)} left none"
    if post.old:
        text += f"\n{who(post.old)}: the file is over an hour older than others; of another job?"
    return text


def parting(post: PostMortem) -> str:
    """Return where the ranks part: what each did at that call, the likely cause, what to do."""
    if not post.divergences:
        return _together(post)
    first, *later = post.divergences
    lines = {}
    for rank, call in first.calls.items():
        lines[rank] = _call(call) + ", no end" * (call.ended is None)
    for rank in first.absent:
        lines[rank] = elsewhere(post.reports[rank]) if rank in post.reports else "left no file"
    notes = [f"Later: {_headline(each)}." for each in later[:_LATER]]
    likely, do = _advice(post, first)
    return _listed(_headline(first), lines, notes=notes, likely=likely, do=do)


def elsewhere(report: RankReport) -> str:
    """Return in a few words what a rank did that did not come to a call."""
    innermost = report.where[0] if report.where else "no line of yours"
    if error := report.own_error:
        return f"raised {error.kind}  {error.site or innermost}"
    if report.stuck:
        call = report.stuck[-1]
        return f"waited in {call.group} call {call.number}, {_call(call)}"
    return f"was elsewhere  {innermost}"


def where(report: RankReport, frames: int) -> str:
    """Return the stack of a rank on one line, innermost first."""
    more = ("…",) if len(report.where) > frames else ()
    return " ← ".join([*report.where[:frames], *more]) or "at no line of yours"


def _call(call: Call) -> str:
    return f"{call.op} {call.detail}".strip() + (f"  {call.site}" if call.site else "")


def _headline(at: Divergence) -> str:
    named = f"call {at.number} of {at.group}"
    if len(at.ops) > 1:
        return f"ranks differ on {named}: {', '.join(at.ops)}"
    return f"{who(at.absent)} did not come to {named}, {at.ops[0]}"


def _advice(post: PostMortem, at: Divergence) -> tuple[str, str]:
    """Return the likely cause, and what to do; as the error says that began it, if there is one."""
    for error, ranks in post.errors.items():
        if error.do is not None:
            return error.likely or "", error.do
        if not error.let_down:
            text = f"{error.kind} on {who(ranks)} came first, and let the others down"
            return text, "mend that error"
    if not at.absent:
        likely = "a branch or a loop that depends on the rank or on its data"
        return likely, f"make the same calls in the same order on every rank; {_ONLY_SOME}"
    if present := [rank for rank in at.absent if rank in post.reports]:
        likely = (
            f"only some ranks make this call, or {who(present)} took longer than the others wait"
        )
        return likely, f"make the call on every rank or on none; {_ONLY_SOME}"
    return _without_file(at)


def _without_file(at: Divergence) -> tuple[str, str]:
    """Return why ranks leave no file, as far as the others' calls tell, and what to do.

    A rank has a guard, which writes the file also where it waits elsewhere, from its first call on.
    """
    do = f"look into the log of {who(at.absent)}, and of the machine; "
    if at.number > 1:  # all made the calls before this one
        cause = "killed at once (out of memory, SIGKILL), or left the file on another machine"
        likely = ranks_do(at.absent, f"was {cause}", f"were {cause}")
        return likely, do + "let all ranks write into one folder"
    likely = (
        "not known: a rank leaves no file if it never called distmetrics, wherever it waits; if it "
        "was killed at once; or if it wrote on another machine"
    )
    return likely, do + "distmetrics.barrier() at the start lets every rank leave a file"


def _together(post: PostMortem) -> str:
    """Return what can be told where no rank differs from another."""
    text = "the ranks came to the same calls, as far as their files tell"
    lines = {rank: elsewhere(report) for rank, report in post.reports.items() if report.stuck}
    if not lines:
        return f"{text}, and none was left waiting"
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
