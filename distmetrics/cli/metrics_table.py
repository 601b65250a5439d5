"""The table of ``verify TARGET``: a row a metric, a column a law; below it what is broken, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distmetrics.testing.laws import Law
from distmetrics.testing.report import Report, columns

_WIDE = 160  # what 24 laws take; a log file has no edge
_FEW = 3  # metrics that fit beside each other
_LEGEND = "✓ holds  ✗ broken  – skipped  ○ declared off"


def show(rows: Sequence[Report | Mapping[str, Any]]) -> None:
    """Print the table; of a single metric the whole report, of several a line for each violation."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _WIDE
    reports = [row for row in rows if isinstance(row, Report)]
    judged = columns(reports)
    if reports:
        console.print(_table(reports, judged) if len(reports) > _FEW else _turned(reports, judged))
    if len(rows) == len(reports) == 1:
        console.print(str(reports[0]), markup=False)
    else:
        _violations(console, reports)
    for row in rows:
        if not isinstance(row, Report):
            console.print(f"not judged  {row['metric']}: {row['error']}", markup=False)
    broken = sum(not report.ok for report in reports)
    said = f"{len(reports)} metric{'s' if len(reports) != 1 else ''} judged, {broken} of them break a law"
    left = len(rows) - len(reports)
    console.print(f"\n{said}" + (f"; {left} could not be judged." if left else "."))


def _table(reports: Sequence[Report], judged: Sequence[Law]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
        caption=_LEGEND,
        caption_justify="left",
    )
    table.add_column("metric", no_wrap=True)
    for law in judged:
        table.add_column(str(law.number), justify="right", no_wrap=True)
    for report in reports:
        table.add_row(report.metric, *(_cell(report, law) for law in judged))
    return table


def _turned(reports: Sequence[Report], judged: Sequence[Law]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, caption=_LEGEND, caption_justify="left"
    )
    table.add_column("", justify="right")
    table.add_column("law", no_wrap=True)
    for report in reports:
        table.add_column(report.metric.rpartition(":")[2], no_wrap=True)
    for law in judged:
        table.add_row(str(law.number), law.name, *(_cell(report, law) for report in reports))
    return table


def _cell(report: Report, law: Law) -> str:
    if any(violation.law == law for violation in report.violations):
        return "[bold red]✗[/]"
    if law in report.off:
        return "[dim]○[/]"
    return (
        "[green]✓[/]" if law in report.judged else "[yellow]–[/]" if law in report.skipped else ""
    )


def _violations(console: Any, reports: Sequence[Report]) -> None:
    from rich.markup import escape

    for report in reports:
        for violation in report.violations:
            law = violation.law
            what = escape(violation.detail.partition("\n")[0])
            console.print(f"[red]{escape(report.metric)}[/] breaks {law.number} {law.name}: {what}")
