"""One self-contained HTML page of reports: metrics by laws, and below it each report."""

import string
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from distmetrics.testing import laws

_MARKS = {"judged": "✓", "skipped": "–", "off": "○"}


def render(reports: Sequence[Mapping[str, Any]], title: str = "Laws of metrics") -> str:
    """Return the page of reports as HTML: it works from a file, and loads nothing.

    Args:
        reports: ``to_dict()`` of what ``check_metric`` returned. One with an ``error`` says why its
            metric could not be judged.
        title: of the page.

    >>> "0 metrics" in render([], "Nothing yet")
    True
    """
    spoken_of: set[str] = set()
    for report in reports:
        spoken_of.update(_marks(report))
    columns = [law.name for law in laws.ALL if law.name in spoken_of]
    broken = sum(bool(report.get("violations")) for report in reports)
    errors = sum("error" in report for report in reports)
    counts = f"{len(reports)} metrics, {broken} of them break a law"
    rows = [_row(number, report, columns) for number, report in enumerate(reports)]
    texts = [_text(number, report) for number, report in enumerate(reports)]
    template = (files("distmetrics.testing") / "data" / "page.html").read_text(encoding="utf-8")
    return string.Template(template).substitute(
        title=escape(title),
        counts=f"{counts}, {errors} could not be judged",
        heads="".join(f'<th scope="col" class="law"><span>{name}</span></th>' for name in columns),
        rows="\n".join(rows),
        texts="\n".join(texts),
    )


def _marks(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the mark of each law that a report speaks of."""
    marks: dict[str, str] = {}
    for kind, mark in _MARKS.items():
        marks |= dict.fromkeys(report.get(kind, ()), mark)
    for violation in report.get("violations", ()):
        marks[violation["law"]] = "✗"
    return marks


def _row(number: int, report: Mapping[str, Any], columns: Sequence[str]) -> str:
    name = f'<th scope="row"><a href="#{number}">{escape(report["metric"])}</a></th>'
    if "error" in report:
        why = f'<td class="error" colspan="{len(columns)}">{escape(report["error"])}</td>'
        return f"<tr>{name}{why}</tr>"
    marks = _marks(report)
    cells = []
    for law in columns:
        mark = marks.get(law, "")
        cells.append(f'<td class="{mark}">{mark}</td>')
    return f"<tr>{name}{''.join(cells)}</tr>"


def _text(number: int, report: Mapping[str, Any]) -> str:
    text = report.get("text") or report.get("error", "")
    return f'<section id="{number}"><pre>{escape(text)}</pre></section>'
