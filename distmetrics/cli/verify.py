"""``python -m distmetrics verify TARGET``: metrics judged by the laws of distributed metrics."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from distmetrics.cli.console import first_line, progress
from distmetrics.cli.verify_table import show
from distmetrics.cli.verify_targets import Target, arguments, inputs, targets
from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.testing import laws
from distmetrics.testing.batches import as_batch
from distmetrics.testing.check import check_metric, drawn
from distmetrics.testing.laws import Laws
from distmetrics.testing.report import Report
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


def verify(
    target: str,
    options: Options,
    *,
    given: Sequence[str],
    as_json: bool,
    html: Path | None,
) -> int:
    """Judge the metrics that a target names, and show the result.

    Returns: 0 if no law is broken, 1 if one is, 2 if nothing could be judged.

    Raises:
        ConfigurationError: a target, law or argument that there is not.
        MissingDependencyError: rich is not installed.
    """
    if not as_json and importlib.util.find_spec("rich") is None:
        raise MissingDependencyError.of("rich", "test", "the table of verify, not its --json,")
    wanted, metrics = chosen(options.laws), targets(target, arguments(given))
    rows: list[Report | dict[str, Any]] = []
    for number, metric in enumerate(metrics, 1):
        with progress(f"{metric.name} ({number} of {len(metrics)})", quiet=as_json):
            rows.append(judge(metric, wanted, options))
    records = [row if isinstance(row, dict) else row.to_dict() for row in rows]
    if as_json:
        print(json.dumps(records, indent=1))  # noqa: T201
    else:
        show(rows)
    if html is not None:
        from distmetrics.testing.page import render

        html.write_text(render(records, f"Laws of {target}"), encoding="utf-8")
    reports = [row for row in rows if isinstance(row, Report)]
    return 2 if not reports else int(not all(report.ok for report in reports))


def judge(target: Target, wanted: Laws, options: Options) -> Report | dict[str, Any]:
    """Judge one metric; where that cannot be done, return why, as the page takes it."""
    failure = {"metric": target.name, "sync": options.sync, "backend": options.backend}
    if target.guess.unknown or (target.trouble and not options.inputs):
        return failure | {"error": target.trouble}
    batches = inputs(options.inputs, target.guess)
    try:
        if refusal := _refusal(target.make, batches, options.seed):
            return failure | {"error": refusal}
        report = check_metric(
            target.make,
            batches,
            laws=wanted,
            world_sizes=tuple(options.world_sizes),
            sync=options.sync,
            backend=options.backend,
            max_examples=options.max_examples,
            seed=options.seed,
        )
    except Exception as error:  # noqa: BLE001  (a metric may raise anything: told in its row)
        return failure | {"error": f"{type(error).__name__}: {first_line(error)}"}
    return replace(report, metric=target.name)


def _refusal(make: Callable[[], Any], batches: Any, seed: int) -> str:
    """Return why no batches make a value in a single process, or "" if some do.

    Every law would hold for the wrong reason.
    """
    cause = ""
    for example in drawn(batches, _TRIED, seed) if hasattr(batches, "example") else [batches]:
        try:
            with quiet():
                metric = make()
                if hasattr(metric, "update"):
                    for batch in map(as_batch, example):
                        metric.update(*batch.args, **batch.kwargs)
                    metric.compute()
        except Exception as error:  # noqa: BLE001  (a metric may raise anything: told in its row)
            cause = f"{type(error).__name__}: {first_line(error)}"
        else:
            return ""
    advice = "pass other --inputs, or --arg for its constructor"
    return f"it gives no value in a single process, {cause}; {advice}"


def chosen(text: str) -> Laws:
    """Return the laws that a text names, by names, numbers or sets; ``-name`` leaves one out.

    >>> len(chosen("default,-rank-order")), [law.number for law in chosen("1,no-hang")]
    (18, [1, 15])

    Raises:
        InputError: there is no such law.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
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
