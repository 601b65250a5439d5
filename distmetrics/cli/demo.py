"""``python -m distmetrics demo``: the main job, end to end, on real data and real processes."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from distmetrics.cli import demo_report
from distmetrics.cli.console import progress
from distmetrics.cli.demo_report import Section, Value
from distmetrics.errors import MissingDependencyError
from distmetrics.testing.world import run

RUNS = (("breast cancer", 2), ("digits", 4))
EPOCHS = 8
BAD_SCRIPT = Path(__file__).parent / "data" / "bad_training.py"


def demo(*, plot: Path | None = None, as_json: bool = False) -> int:
    """Train, compare, lint, print; return 0 if every number of distmetrics is the single process's.

    ``plot`` is where to save a picture of the differences; ``as_json`` prints no tables.

    Raises:
        MissingDependencyError: a package of the extra ``demo`` is not installed.
    """
    modules = ["sklearn", "rich", "torchmetrics", "distlint"]
    if plot is not None:
        modules.append("matplotlib")
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError.of(module, "demo", "the demo")
    sections = []
    for data, world_size in RUNS:
        with progress(f"training on {data} with {world_size} processes", quiet=as_json):
            sections.append(run_section(data, world_size))
    findings = lint(BAD_SCRIPT)
    if plot is not None:
        demo_report.draw(sections, plot)
    if as_json:
        report = {
            "sections": [asdict(section) for section in sections],
            "findings": findings,
        }
        print(json.dumps(report, indent=1))  # noqa: T201
    else:
        demo_report.show(sections, findings, BAD_SCRIPT)
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
    metrics = {}
    for name, true in truth.items():
        metrics[name] = {way: Value.of(values[name], true) for way, values in ways.items()}
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
    command = [sys.executable, "-m", "distlint", "check", str(script), "--output-format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode not in (0, 1):
        raise RuntimeError(f"distlint ended with exit code {done.returncode}: {done.stderr}")
    findings: list[dict[str, Any]] = json.loads(done.stdout)
    return findings
