"""``python -m distmetrics verify TARGET``: metrics judged by the laws of distributed metrics."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from distmetrics.cli.console import console, counted, progress, table
from distmetrics.cli.verify_targets import Target, arguments, batches_of, targets
from distmetrics.errors import (
    ConfigurationError,
    InputError,
    MissingDependencyError,
    first_line,
    in_short,
)
from distmetrics.testing import laws
from distmetrics.testing.check import check_metric
from distmetrics.testing.law import Law, Laws
from distmetrics.testing.report import Report, columns

_SETS = {
    "all": laws.ALL,
    "default": laws.DEFAULT,
    "numerics": laws.NUMERICS,
    "exact": laws.EXACT,
}


def verify(
    *, target: str, arg: Sequence[str], as_json: bool, html: Path | None, **options: Any
) -> int:
    """Judge the metrics that a target names, and show the result.

    Args:
        target: as :func:`targets` reads it.
        arg: arguments of constructors, ``NAME=VALUE``.
        as_json: print JSON.
        html: a file for the page.
        options: of ``check_metric``; laws and inputs as texts.

    Returns: 0 if no law is broken, 1 if one is, 2 if nothing could be judged.

    Raises:
        ConfigurationError: a target, law or argument that there is not.
        MissingDependencyError: rich is not installed.
    """
    if not as_json and importlib.util.find_spec("rich") is None:
        raise MissingDependencyError.of("rich", "the table of verify, not its --json,")
    options["laws"] = chosen(options["laws"])
    metrics = targets(target, arguments(arg))
    rows: list[Report | dict[str, Any]] = []
    for number, metric in enumerate(metrics, 1):
        with progress(f"{metric.name} ({number} of {len(metrics)})", quiet=as_json):
            rows.append(judge(metric, **options))
    records = [row if isinstance(row, dict) else row.to_dict() for row in rows]
    if as_json:
        print(json.dumps(records, indent=1))  # noqa: T201
    else:
        show(rows)
    if html is not None:
        from distmetrics.testing.page import render

        html.write_text(render(records, f"Laws of {target}"), encoding="utf-8")
    reports = [row for row in rows if isinstance(row, Report)]
    if not reports:
        return 2
    return int(not all(report.ok for report in reports))


def judge(target: Target, *, inputs: str, **options: Any) -> Report | dict[str, Any]:
    """Judge one metric; where that cannot be done, return why, as the page takes it."""
    failure = {"metric": target.name, "sync": options["sync"], "backend": options["backend"]}
    if target.guess.unknown or (target.trouble and not inputs):
        return failure | {"error": target.trouble}
    batches = batches_of(inputs, target.guess)
    try:
        report = check_metric(target.make, batches, **options)
    except InputError as error:
        cause = " ".join(error.what.split())
        return failure | {"error": f"{cause}; pass other --inputs, or --arg for its constructor"}
    except Exception as error:  # noqa: BLE001  (a metric may raise anything: told in its row)
        return failure | {"error": in_short(error)}
    return replace(report, metric=target.name)


def chosen(text: str) -> Laws:
    """Return the laws that a text names, by names, numbers or sets; ``-name`` leaves one out.

    >>> len(chosen("default,-rank-order")), [law.number for law in chosen("1,no-hang")]
    (18, [1, 15])

    Raises:
        InputError: there is no such law.
    """
    names = text.replace(",", " ").lower().split()
    if not names:
        raise ConfigurationError(
            "--laws names none; write names or numbers with commas between, all, or default"
        )
    selected = laws.DEFAULT if names[0].startswith("-") else laws.DEFAULT - laws.ALL
    for name in names:
        plain = name.removeprefix("-")
        named = _SETS[plain] if plain in _SETS else Laws.of(laws.find(plain))
        if plain == name:
            selected |= named
        else:
            for law in named:
                selected = selected.off(law, because="switched off on the command line")
    return selected


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
            for violation in report.violations:
                text = f"breaks {violation.law.number} {violation.law.name}"
                line = f"{report.metric} {text}: {first_line(violation.detail)}"
                screen.print(line, style="red", markup=False)
    for row in rows:
        if not isinstance(row, Report):
            screen.print(f"not judged  {row['metric']}: {row['error']}", markup=False)
    broken = sum(not report.ok for report in reports)
    left = len(rows) - len(reports)
    rest = f"; {left} could not be judged." if left else "."
    screen.print(f"\n{counted(len(reports), 'metric')} judged, {broken} of them break a law{rest}")


def _table(reports: Sequence[Report]) -> Any:
    """Return a row a law and a column a metric; of many metrics a row a metric."""
    laws = columns(reports)
    if len(reports) > _FEW:
        numbers = [str(law.number) for law in laws]
        grid = table("metric", *numbers, padding=(0, 0, 0, 1))
        for report in reports:
            cells = [_cell(report, law) for law in laws]
            grid.add_row(report.metric, *cells)
    else:
        names = [report.metric.rpartition(":")[2] for report in reports]
        grid = table("", "law", *names, padding=(0, 1))
        for law in laws:
            cells = [_cell(report, law) for report in reports]
            grid.add_row(str(law.number), law.name, *cells)
    grid.caption = "✓ holds  ✗ broken  – skipped  ○ declared off"
    grid.caption_justify = "left"
    return grid


def _cell(report: Report, law: Law) -> str:
    if any(violation.law == law for violation in report.violations):
        return "[bold red]✗[/]"
    if law in report.off:
        return "[dim]○[/]"
    if law in report.judged:
        return "[green]✓[/]"
    return "[yellow]–[/]" if law in report.skipped else ""
