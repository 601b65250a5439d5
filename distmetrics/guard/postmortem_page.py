"""A postmortem as one small HTML page: the text, each error, and the last calls of each rank."""

from __future__ import annotations

import string
from collections.abc import Sequence
from html import escape
from pathlib import Path

from distmetrics.errors import who
from distmetrics.guard.postmortem import PostMortem
from distmetrics.guard.postmortem_files import Call, RankReport
from distmetrics.guard.postmortem_text import parting, raised, summary, where

_ERRORS = 30  # that are shown in full
_LONGEST = 20_000  # letters of one error's text
_ROWS = 500  # groups of equal ranks
_FRAMES = 50  # lines of one stack
_PAGE = string.Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; }
pre { overflow-x: auto; }
td, th { text-align: left; vertical-align: top; padding: 0.3rem 1rem 0.3rem 0; }
</style>
</head>
<body>
<h1>$title</h1>
<pre>$summary</pre>
<h2>Where the ranks part</h2>
<pre>$parting</pre>
<h2>Errors</h2>
$errors
<h2>Where each rank was, and its last calls</h2>
<table>
<tr><th>ranks</th><th>state</th><th>lines of your code, innermost first</th><th>calls</th></tr>
$rows
</table>
</body>
</html>
""")


def write(post: PostMortem, path: Path, title: str) -> None:
    """Write the page of a postmortem to a file."""
    path.write_text(render(post, title), encoding="utf-8", errors="backslashreplace")


def render(post: PostMortem, title: str = "Postmortem") -> str:
    """Return the page of a postmortem as HTML: no request leaves it, and it works from a file.

    Ranks that were at the same place after the same calls share a row.
    """
    return _PAGE.substitute(
        title=escape(title),
        summary=escape(summary(post)),
        parting=escape(parting(post)),
        errors=_errors(post),
        rows=_rows(post),
    )


def _errors(post: PostMortem) -> str:
    """Return each error's text once, with the ranks that raised it."""
    parts = []
    for error, ranks in [*post.errors.items()][:_ERRORS]:
        head = raised(ranks, error.kind, error.site)
        text = error.text[:_LONGEST] + "…" * (len(error.text) > _LONGEST)
        parts.append(_details(head, text, "open"))
    if left := len(post.errors) - len(parts):
        parts.append(f"<p>{left} other errors are not shown; they are in the ranks' files.</p>")
    return "\n".join(parts) or "<p>No rank raised an error.</p>"


def _details(head: str, text: str, state: str = "") -> str:
    shown = f"<summary>{escape(head)}</summary><pre>{escape(text)}</pre>"
    return f"<details {state}>{shown}</details>"


def _rows(post: PostMortem) -> str:
    """Return a row for each group of ranks that did the same."""
    groups: dict[tuple[object, ...], list[RankReport]] = {}
    for report in post.reports.values():
        calls = tuple(
            (each.group, each.number, each.op, each.ended is None) for each in report.calls
        )
        state = f"raised {report.error.kind}" if report.error else "elsewhere"
        groups.setdefault((state, where(report, _FRAMES), calls), []).append(report)
    rows = [
        _row(who(each.rank for each in reports), str(state), str(stack), reports[0].calls)
        for (state, stack, _), reports in [*groups.items()][:_ROWS]
    ]
    if left := len(groups) - len(rows):
        rows.append(_row(f"{left} more groups", "are not shown"))
    if post.missing:
        rows.append(_row(who(post.missing), "left no file"))
    return "\n".join(rows)


def _row(ranks: str, state: str, stack: str = "", calls: Sequence[Call] = ()) -> str:
    """Return a row of the table, with a rank's calls and their durations, the newest first."""
    lines = []
    for call in calls[::-1]:
        took = "no end" if call.ended is None else f"{call.ended - call.started:.3f} s"
        named = f"{call.group} {call.number}  {call.op} {call.detail}"
        lines.append(f"{took:>10}  {named}  {call.site}")
    cells = "".join(f"<td>{escape(text)}</td>" for text in (ranks, state, stack))
    text = _details(f"{len(calls)}", "\n".join(lines)) if calls else ""
    return f"<tr>{cells}<td>{text}</td></tr>"
