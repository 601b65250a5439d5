"""A postmortem as one small HTML page: the text, and the last calls of each rank."""

import string
from collections.abc import Sequence
from html import escape
from pathlib import Path

from distmetrics.errors import who
from distmetrics.guard.postmortem import Call, PostMortem, RankReport, describe, where

_ERRORS = 30  # that are shown in full
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
<pre>$text</pre>
<h2>Where each rank was, and its last calls</h2>
<table>
<tr><th>ranks</th><th>lines of your code, innermost first</th><th>calls</th></tr>
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
    text = describe(post, _ERRORS)
    return _PAGE.substitute(title=escape(title), text=escape(text), rows=_rows(post))


def _rows(post: PostMortem) -> str:
    """Return a row for each group of ranks that did the same."""
    groups: dict[tuple[str, object], list[RankReport]] = {}
    for report in post.reports.values():
        calls = tuple((each.number, each.op, each.ended is None) for each in report.calls)
        groups.setdefault((where(report, _FRAMES), calls), []).append(report)
    rows = []
    for (stack, _), reports in [*groups.items()][:_ROWS]:
        ranks = who(report.rank for report in reports)
        rows.append(_row(ranks, stack, reports[0].calls))
    if left := len(groups) - len(rows):
        rows.append(f"<tr><td>{left} more groups are not shown</td></tr>")
    return "\n".join(rows)


def _row(ranks: str, stack: str, calls: Sequence[Call]) -> str:
    """Return a row of the table, with a rank's calls and their durations, the newest first."""
    listed = ""
    for call in calls[::-1]:
        took = "no end" if call.ended is None else f"{call.ended - call.started:.3f} s"
        named = f"{call.group} {call.number}  {call.op} {call.detail}"
        listed += f"{took:>10}  {named}  {call.site}\n"
    details = f"<summary>{len(calls)}</summary><pre>{escape(listed)}</pre>"
    cells = f"<td>{escape(ranks)}</td><td>{escape(stack)}</td>"
    return f"<tr>{cells}<td><details>{details}</details></td></tr>"
