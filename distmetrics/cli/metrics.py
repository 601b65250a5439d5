"""``python -m distmetrics verify TARGET``: metrics judged by the laws of distributed metrics."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from distmetrics.cli.demo_report import progress
from distmetrics.cli.metrics_table import show
from distmetrics.cli.targets import Target, arguments, inputs, targets
from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.testing import laws
from distmetrics.testing.check import check_metric, drawn
from distmetrics.testing.laws import Laws
from distmetrics.testing.report import Report
from distmetrics.testing.batches import as_batch
from distmetrics.testing.subject import quiet

_TRIED = 5  # examples, one of which must make a value
_SETS = {"all": laws.ALL, "default": laws.DEFAULT, "numerics": laws.NUMERICS, "exact": laws.EXACT}


@dataclass(frozen=True)
class Options:
    """How metrics are judged; as of ``check_metric``."""

    laws: str = "default"
    sync: Literal["distmetrics", "own"] = "distmetrics"
    backend: Literal["threads", "gloo"] = "threads"
    world_sizes: Sequence[int] = (2, 3)
    inputs: str = ""
    max_examples: int = 10
    seed: int = 0


def verify_metrics(
    target: str,
    options: Options,
    *,
    given: Sequence[str] = (),
    as_json: bool = False,
    html: Path | None = None,
) -> int:
    """Judge the metrics that a target names, show what was found.

    Args:
        target: ``package.module:Name`` or ``package.module``.
        options: how to judge.
        given: arguments of constructors, ``name=value``.
        as_json: print JSON.
        html: a file for the page.

    Returns: 0 if no law is broken, 1 if one is, 2 if nothing could be judged.

    Raises:
        ConfigurationError: a target, law or argument that there is not.
        MissingDependencyError: rich is not installed.
    """
    if not as_json and importlib.util.find_spec("rich") is None:
        raise MissingDependencyError.of("rich", "test", "the table of verify, not its --json,")
    asked, found = chosen(options.laws), targets(target, arguments(given))
    rows: list[Report | dict[str, Any]] = []
    for number, each in enumerate(found, 1):
        with progress(f"{each.name} ({number} of {len(found)})", quiet=as_json):
            rows.append(judge(each, asked, options))
    if as_json:
        records = [row if isinstance(row, dict) else row.to_dict() for row in rows]
        print(json.dumps(records, indent=1))  # noqa: T201
    else:
        show(rows)
    if html is not None:
        from distmetrics.testing.page import write

        write(rows, html, f"Laws of {target}")
    reports = [row for row in rows if isinstance(row, Report)]
    return 2 if not reports else int(not all(report.ok for report in reports))


def judge(target: Target, asked: Laws, options: Options) -> Report | dict[str, Any]:
    """Judge one metric; where that cannot be done, return why, as the page takes it."""
    failed = {"metric": target.name, "sync": options.sync, "backend": options.backend}
    if target.guess.unknown or (target.trouble and not options.inputs):
        return failed | {"error": target.trouble}
    batches = inputs(options.inputs, target.guess)
    try:
        if why := _refusal(target.make, batches, options):
            return failed | {"error": why}
        report = check_metric(
            target.make,
            batches,
            laws=asked,
            world_sizes=tuple(options.world_sizes),
            sync=options.sync,
            backend=options.backend,
            max_examples=options.max_examples,
            seed=options.seed,
        )
    except Exception as error:  # noqa: BLE001  (a metric may raise anything when it is made: told in its row)
        return failed | {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    return replace(report, metric=target.name)


def _refusal(make: Callable[[], Any], batches: Any, options: Options) -> str:
    """Say why no batches make a value in a single process; every law would hold for the wrong
    reason.
    """
    examples = drawn(batches, _TRIED, options.seed) if hasattr(batches, "example") else [batches]
    said = ""
    for example in examples:
        try:
            with quiet():
                metric = make()
                if hasattr(metric, "update"):
                    for batch in map(as_batch, example):
                        metric.update(*batch.args, **batch.kwargs)
                    metric.compute()
        except Exception as error:  # noqa: BLE001  (a metric may raise anything: told in its row)
            said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        else:
            return ""
    return f"it gives no value in a single process, {said}; pass other --inputs, or --arg for its constructor"


def chosen(text: str) -> Laws:
    """Read which laws to judge: names or numbers with commas between, sets of them, and ``-name``
    for off.

    >>> len(chosen("default,-rank-order")), [law.number for law in chosen("1,no-hang")]
    (18, [1, 15])

    Raises:
        InputError: there is no such law.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigurationError(
            "--laws names none; write names or numbers with commas between, all, or default"
        )
    found = laws.DEFAULT if names[0].startswith("-") else laws.DEFAULT - laws.ALL
    for name in names:
        if name.startswith("-"):
            for law in _named(name[1:]):
                found = found.off(law, because="switched off on the command line")
        else:
            found |= _named(name)
    return found


def _named(name: str) -> Laws:
    return _SETS[name.lower()] if name.lower() in _SETS else Laws.of(laws.find(name))
