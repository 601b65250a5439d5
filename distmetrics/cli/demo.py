"""``python -m distmetrics demo``: the main job, end to end, on real data and real processes."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from distmetrics.cli.console import console, progress, table
from distmetrics.errors import MissingDependencyError
from distmetrics.testing import run

_TOLERANCE = 1e-6  # relative, as float32 metrics allow; counts must be equal
_LEGEND = (
    "Padded sampler: torchmetrics' sync over what a DistributedSampler deals out, as most trainers "
    "evaluate. Of the matrix, the number of samples in it."
)


@dataclass(frozen=True, slots=True)
class Value:
    """What one way makes of a metric.

    Attributes:
        value: a number, or a matrix of counts.
        difference: from the single process's; of a matrix that in samples.
        equal: counts exactly, floats to 1e-6 of them.
    """

    value: Any
    difference: float
    equal: bool

    @classmethod
    def of(cls, value: Any, truth: Any) -> Value:
        """Compare a value with that of a single process."""
        expected = torch.tensor(truth, dtype=torch.float64)
        gap = torch.tensor(value, dtype=torch.float64) - expected
        allowed = 0.0 if expected.ndim else _TOLERANCE * abs(truth)
        equal = bool((gap.abs() <= allowed).all())
        return cls(value, float(gap.sum()), equal)

    def __str__(self) -> str:
        """Return it for a cell of the table: green where it is right."""
        if isinstance(self.value, float):
            text = f"{self.value:.5f}"
        else:
            text = f"{sum(map(sum, self.value)):g}"
        if self.equal:
            return f"[green]{text}\nequal[/]"
        return f"[red]{text}\n{self.difference:+.3g}[/]"


@dataclass(frozen=True, slots=True)
class Section:
    """One training run, and what each way of syncing made of each metric of its validation."""

    data: str
    world_size: int
    shards: list[int]
    metrics: dict[str, dict[str, Value]]
    collectives: dict[str, int]
    logged: dict[str, float]
    seconds: float

    @property
    def title(self) -> str:
        """The run in a few words."""
        shards = " + ".join(map(str, self.shards))
        return f"{self.data}: {self.world_size} processes, shards of {shards} samples"

    @property
    def held(self) -> bool:
        """True if every number of distmetrics is the single process's."""
        return all(ways["distmetrics"].equal for ways in self.metrics.values())


def show(sections: Sequence[Section], findings: Sequence[dict[str, Any]], script: Path) -> None:
    """Print the tables and the linter's findings."""
    screen = console()
    for section in sections:
        screen.print(_table(section))
        calls = ", ".join(f"{way} {count}" for way, count in section.collectives.items())
        screen.print(f"{_LEGEND}\nCollectives for all metrics: {calls}.\n")
    screen.print(f"[bold]distlint check {script.name}[/]: the kind of script that logs such:\n")
    lines = script.read_text().splitlines()
    for finding in findings:
        line = finding["line"]
        screen.print(f"line {line}  {finding['code']} {finding['message']}", markup=False)
        screen.print(f"  {lines[line - 1].strip()}", markup=False)
    verdict = "every number of distmetrics is the single process's"
    if not all(section.held for section in sections):
        verdict = "distmetrics is WRONG somewhere"
    seconds = sum(section.seconds for section in sections)
    screen.print(f"\n{verdict}; {seconds:.0f} s in all.")


def _table(section: Section) -> Any:
    grid = table("metric", title=section.title, padding=0)
    for way in section.metrics["loss"]:
        grid.add_column(way, justify="right")
    for name, ways in section.metrics.items():
        grid.add_row(name, *map(str, ways.values()))
    return grid


RUNS = (("breast cancer", 2), ("digits", 4))
EPOCHS = 8
# What is imported, and what pip calls it: distlint is a folder of the checkout.
NEEDS = {
    "sklearn": "scikit-learn",
    "rich": "rich",
    "torchmetrics": "torchmetrics",
    "distlint": "./lint",
}
BAD_SCRIPT = Path(__file__).parent / "data" / "bad_training.py"


def demo(*, as_json: bool) -> int:
    """Train, compare, lint, print; return 0 if every number of distmetrics is the single process's.

    ``as_json`` prints no tables.

    Raises:
        MissingDependencyError: a package that the demo needs is not installed.
    """
    for module, package in NEEDS.items():
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError.of(package, "the demo")
    sections = []
    for data, world_size in RUNS:
        with progress(f"training on {data} with {world_size} processes", quiet=as_json):
            sections.append(run_section(data, world_size))
    findings = lint(BAD_SCRIPT)
    if as_json:
        report = {
            "sections": [asdict(section) for section in sections],
            "findings": findings,
        }
        print(json.dumps(report, indent=1))  # noqa: T201
    else:
        show(sections, findings, BAD_SCRIPT)
    return int(not all(section.held for section in sections))


def run_section(data: str, world_size: int) -> Section:
    """Train with ddp_spawn, validate on uneven shards, and compute the truth in this process."""
    from distmetrics.cli import demo_train

    started = time.perf_counter()
    torch.manual_seed(0)
    source = demo_train.ShardedData(data)
    x, y = source.val_set.tensors
    module = demo_train.Classifier(x.shape[1], source.classes)
    trainer = _trained(module, source, world_size)
    ranks = run(world_size, demo_train.compare, module.net, data, backend="gloo")
    own = [rank["alone"] for rank in ranks]
    bounds = demo_train.shard_bounds(len(y), world_size)
    shards = [last - first for first, last in itertools.pairwise(bounds)]
    whole = demo_train.evaluated(module.net, source.classes, [(x, y)])
    truth = demo_train.values(whole)
    ways = {"one process": truth, "rank 0 alone": own[0], "mean of ranks": _mean(own)}
    ways |= ranks[0]["ways"]
    metrics: dict[str, dict[str, Value]] = {}
    for name, true in truth.items():
        metrics[name] = {}
        for way, values in ways.items():
            metrics[name][way] = Value.of(values[name], true)
    return Section(
        data=data,
        world_size=world_size,
        shards=shards,
        metrics=metrics,
        collectives=ranks[0]["collectives"],
        logged={name: float(value) for name, value in trainer.callback_metrics.items()},
        seconds=time.perf_counter() - started,
    )


def _trained(module: Any, source: Any, world_size: int) -> Any:
    """Return the trainer that has trained a module."""
    from distmetrics.train import Trainer

    trainer = Trainer(
        strategy="ddp_spawn",
        devices=world_size,
        max_epochs=EPOCHS,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        seed=0,
    )
    trainer.fit(module, datamodule=source)
    return trainer


def _mean(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean over ranks of each value."""
    means = {}
    for name in ranks[0]:
        every = torch.tensor([values[name] for values in ranks], dtype=torch.float64)
        means[name] = every.mean(dim=0).tolist()
    return means


def lint(script: Path) -> list[dict[str, Any]]:
    """Run distlint over a script; return its findings."""
    check = [sys.executable, "-m", "distlint", "check"]
    command = [*check, str(script), "--output-format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode not in (0, 1):
        raise RuntimeError(f"distlint ended with exit code {done.returncode}: {done.stderr}")
    findings: list[dict[str, Any]] = json.loads(done.stdout)
    return findings
