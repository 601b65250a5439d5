"""The table of ``verify TARGET``: metrics by laws; below it what is broken, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distmetrics.cli.console import console, counted, first_line, table
from distmetrics.testing.laws import Law
from distmetrics.testing.report import Report, columns

_WIDE = 160  # letters that 24 laws take
_FEW = 3  # metrics that fit beside each other


def show(rows: Sequence[Report | Mapping[str, Any]]) -> None:
    """Print the table; of one metric the whole report, of several a line for each violation."""
    screen = console(_WIDE, soft_wrap=True)
    reports = [row for row in rows if isinstance(row, Report)]
    if reports:
        screen.print(_table(reports))
    if len(rows) == len(reports) == 1:
        screen.print(str(reports[0]), markup=False)
    else:
        for report in reports:
            _show_violations(screen, report)
    for row in rows:
        if not isinstance(row, Report):
            screen.print(f"not judged  {row['metric']}: {row['error']}", markup=False)
    broken = sum(not report.ok for report in reports)
    left = len(rows) - len(reports)
    rest = f"; {left} could not be judged." if left else "."
    screen.print(f"\n{counted(len(reports), 'metric')} judged, {broken} of them break a law{rest}")


def _show_violations(screen: Any, report: Report) -> None:
    for violation in report.violations:
        text = f"breaks {violation.law.number} {violation.law.name}"
        line = f"{report.metric} {text}: {first_line(violation.detail)}"
        screen.print(line, style="red", markup=False)


def _table(reports: Sequence[Report]) -> Any:
    """Return a row a law and a column a metric; of many metrics a row a metric."""
    laws = columns(reports)
    style: dict[str, Any] = {
        "caption": "✓ holds  ✗ broken  – skipped  ○ declared off",
        "caption_justify": "left",
    }
    if len(reports) > _FEW:
        grid = table("metric", *(str(law.number) for law in laws), padding=(0, 0, 0, 1), **style)
        for report in reports:
            grid.add_row(report.metric, *(_cell(report, law) for law in laws))
        return grid
    names = [report.metric.rpartition(":")[2] for report in reports]
    grid = table("", "law", *names, padding=(0, 1), **style)
    for law in laws:
        grid.add_row(str(law.number), law.name, *(_cell(report, law) for report in reports))
    return grid


def _cell(report: Report, law: Law) -> str:
    if any(violation.law == law for violation in report.violations):
        return "[bold red]✗[/]"
    if law in report.off:
        return "[dim]○[/]"
    if law in report.judged:
        return "[green]✓[/]"
    return "[yellow]–[/]" if law in report.skipped else ""
