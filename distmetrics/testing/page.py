"""One self-contained HTML page of reports: metrics by laws, and below the case of each violation."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from distmetrics.testing import laws
from distmetrics.testing.report import Report, Violation


def write(
    reports: Sequence[Report | Mapping[str, Any]], path: str | Path, title: str = "Laws of metrics"
) -> None:
    """Write the page of reports to a file; see :func:`render`."""
    Path(path).write_text(render(reports, title), encoding="utf-8")


def render(reports: Sequence[Report | Mapping[str, Any]], title: str = "Laws of metrics") -> str:
    """Return the page of reports as HTML: it works from a file, and loads nothing.

    Args:
        reports: what ``check_metric`` returned, or ``to_dict()`` of it. A dictionary with an
            ``error`` says why its metric could not be judged.
        title: of the page.

    >>> "0 metrics" in render([], "Nothing yet")
    True
    """
    found = [report.to_dict() if isinstance(report, Report) else report for report in reports]
    spoken_of = {name for report in found for name in _verdicts(report)}
    columns = [law.name for law in laws.ALL if law.name in spoken_of]
    broken = sum(bool(report.get("violations")) for report in found)
    errors = sum("error" in report for report in found)
    template = (files("distmetrics.testing") / "data" / "page.html").read_text(encoding="utf-8")
    return string.Template(template).substitute(
        title=escape(title),
        counts=f"{len(found)} metrics, {broken} of them break a law, {errors} could not be judged",
        heads="".join(f'<th scope="col" class="law"><span>{name}</span></th>' for name in columns),
        rows="\n".join(_row(number, report, columns) for number, report in enumerate(found)),
        cases="\n".join(
            _case(number, case)
            for number, report in enumerate(found)
            for case in report.get("violations", ())
        ),
    )


def _verdicts(report: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return verdict and reason of each law that a report speaks of."""
    return {
        **{name: ("ok", "") for name in report.get("judged", ())},
        **{name: ("skipped", why) for name, why in report.get("skipped", {}).items()},
        **{name: ("off", why) for name, why in report.get("off", {}).items()},
        **{case["law"]: ("violated", "") for case in report.get("violations", ())},
    }


_MARKS = {"ok": "✓", "violated": "✗", "skipped": "–", "off": "○"}


def _row(number: int, report: Mapping[str, Any], columns: Sequence[str]) -> str:
    run = f"{report.get('sync', '')} sync, {report.get('backend', '')}"
    cells = [f'<th scope="row">{escape(report["metric"])}</th><td>{escape(run)}</td>']
    if "error" in report:
        cells.append(f'<td class="error" colspan="{len(columns)}">{escape(report["error"])}</td>')
        return f"<tr>{''.join(cells)}</tr>"
    verdicts = _verdicts(report)
    for name in columns:
        verdict, why = verdicts.get(name, ("", ""))
        mark = _MARKS.get(verdict, "")
        if verdict == "violated":
            mark = f'<a href="#{number}-{name}">{mark}</a>'
        cells.append(f'<td class="{verdict}" title="{escape(why)}">{mark}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _case(number: int, case: Mapping[str, Any]) -> str:
    violation = Violation.from_dict(case)
    heading = escape(f"{violation.metric}: {violation.law}")
    anchor = f"{number}-{violation.law}"
    return f'<section id="{anchor}"><h2>{heading}</h2><pre>{escape(str(violation))}</pre></section>'
