"""One self-contained HTML page of a postmortem: what was found, and a timeline with a lane for each
rank.
"""

from __future__ import annotations

import string
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path

from distmetrics.errors import who
from distmetrics.guard.postmortem import PostMortem
from distmetrics.guard.postmortem_text import parting, raised, summary, where
from distmetrics.guard.timeline_data import lanes, packed

_ERRORS = 30  # errors that are shown in full
_LONGEST = 20_000  # letters of one error's text
_STACKS = 200  # rows of the table of stacks
_FRAMES = 50  # lines of one stack


def write(post: PostMortem, path: str | Path, title: str = "Postmortem") -> None:
    """Write the page of a postmortem to a file; see :func:`render`."""
    Path(path).write_text(render(post, title), encoding="utf-8", errors="backslashreplace")


def render(post: PostMortem, title: str = "Postmortem") -> str:
    """Return the page of a postmortem as HTML: no request leaves it, and it works from a file.

    Each rank has a lane; of more than 32 ranks those that made the same calls share one.
    """
    rows = lanes(post)
    parts = files("distmetrics.guard") / "data"
    page = string.Template((parts / "timeline.html").read_text(encoding="utf-8"))
    groups = sorted({call.group for report in post.reports.values() for call in report.calls})
    return page.substitute(
        title=escape(title),
        css=(parts / "timeline.css").read_text(encoding="utf-8"),
        js=(parts / "timeline.js").read_text(encoding="utf-8"),
        summary="<br>".join(escape(line) for line in summary(post).splitlines()),
        written=escape(_written(post)),
        parting=escape(parting(post)),
        errors=_errors(post),
        stacks=_stacks(post),
        group_options="".join(
            f'<option value="{escape(name)}">{escape(name)}</option>' for name in groups
        ),
        data=packed(post, rows),
    )


def _written(post: PostMortem) -> str:
    """Say when the files were written, by the clock of the first host."""
    times = [report.written for report in post.reports.values()]
    first, last = (
        datetime.fromtimestamp(time, UTC).replace(microsecond=0)
        for time in (min(times), max(times))
    )
    until = f" to {last:%H:%M:%S}" if last != first else ""
    return f"files written {first:%Y-%m-%d %H:%M:%S}{until} UTC"


def _errors(post: PostMortem) -> str:
    """Return each error's text once, with the ranks that raised it."""
    parts = []
    for error, ranks in list(post.errors.items())[:_ERRORS]:
        kind = "after" if error.let_down else "first"
        head = f"<summary>{escape(raised(ranks, error.kind, error.site))}</summary>"
        text = error.text if len(error.text) <= _LONGEST else f"{error.text[:_LONGEST]}…"
        parts.append(f'<details class="{kind}" open>{head}<pre>{escape(text)}</pre></details>')
    if left := len(post.errors) - len(parts):
        parts.append(f"<p>{left} other errors are not shown; they are in the ranks' files.</p>")
    return "\n".join(parts) or "<p>No rank raised an error.</p>"


def _stacks(post: PostMortem) -> str:
    """Return the rows of the table that says where each rank was."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, report in post.reports.items():
        state = f"raised {report.error.kind}" if report.error else "elsewhere"
        groups.setdefault((state, where(report, _FRAMES)), []).append(rank)
    rows = [(who(ranks), state, stack) for (state, stack), ranks in groups.items()]
    if post.missing:
        rows.append((who(post.missing), "left no file", ""))
    if (left := len(rows) - _STACKS) > 0:
        rows[_STACKS:] = [(f"{left} more", "are not shown", "")]
    return "\n".join(
        f'<tr><th scope="row">{escape(ranks)}</th><td>{escape(state)}</td><td>{escape(stack)}</td></tr>'
        for ranks, state, stack in rows
    )
