"""``python -m distmetrics demo``: the main job, end to end, on real data and real processes."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from distmetrics.cli import demo_report
from distmetrics.cli.console import progress
from distmetrics.cli.demo_report import Section
from distmetrics.errors import MissingDependencyError

RUNS = (("breast cancer", 2), ("digits", 4))
WAYS = ("rank 0 alone", "mean of ranks", "padded sampler", "torchmetrics", "distmetrics")
EPOCHS = 8
BAD_SCRIPT = Path(__file__).parent / "data" / "bad_training.py"
_PACKAGES = {"sklearn": "scikit-learn"}  # of modules that are named otherwise


def demo(*, plot: Path | None = None, as_json: bool = False) -> int:
    """Train, compare, lint, print; return 0 if every number of distmetrics is the single process's.

    Args:
        plot: where to save a picture of the differences, if anywhere.
        as_json: print one JSON object instead of tables.

    Raises:
        MissingDependencyError: a package of the extra ``demo`` is not installed.
    """
    for module in ("sklearn", "rich", "torchmetrics", "distlint", *["matplotlib"] * bool(plot)):
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError.of(_PACKAGES.get(module, module), "demo", "the demo")
    started = time.perf_counter()
    sections = []
    for data, world_size in RUNS:
        with progress(f"training on {data} with {world_size} processes", quiet=as_json):
            sections.append(run_section(data, world_size))
    findings = lint(BAD_SCRIPT)
    if plot is not None:
        demo_report.draw(sections, plot)
    if as_json:
        print(json.dumps(demo_report.as_json(sections, findings), indent=1))  # noqa: T201
    else:
        demo_report.show(sections, findings, BAD_SCRIPT, time.perf_counter() - started, plot)
    return 0 if all(section.held for section in sections) else 1


def run_section(data: str, world_size: int) -> Section:
    """Train with ddp_spawn, validate on uneven shards, and compute the truth in this process."""
    from distmetrics.cli.demo_train import Classifier, ShardedData, shard_bounds
    from distmetrics.train import Trainer

    torch.manual_seed(0)
    source = ShardedData(data)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="distmetrics-demo-") as folder:
        report = Path(folder) / "report.json"
        module = Classifier(source.val_set, source.classes, report)
        trainer = Trainer(
            strategy="ddp_spawn",
            devices=world_size,
            max_epochs=EPOCHS,
            use_distributed_sampler=False,
            enable_progress_bar=False,
            seed=0,
        )
        trainer.fit(module, datamodule=source)
        ways = json.loads(report.read_text())
    bounds = shard_bounds(len(source.val_set), world_size)
    truth, witness = single_process(module, source)
    return Section(
        data,
        world_size,
        [last - first for first, last in itertools.pairwise(bounds)],
        truth,
        {way: ways[way] for way in WAYS},
        ways["collectives"],
        {name: float(value) for name, value in trainer.callback_metrics.items()},
        time.perf_counter() - started,
        witness,
    )


def single_process(module: Any, source: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """Compute every metric over the whole validation set here, and some by scikit-learn too."""
    from sklearn import metrics as sk

    from distmetrics.cli.demo_train import make_metrics, update

    x, y = source.val_set.tensors
    with torch.no_grad():
        logits = module.net(x)
    metrics = make_metrics(source.classes)
    update(metrics, logits, y)
    scores, predicted = logits.softmax(dim=1).double().numpy(), logits.argmax(dim=1)
    one_hot = torch.nn.functional.one_hot(y, source.classes)
    witness = {
        "accuracy": sk.accuracy_score(y, predicted),
        "macro F1": sk.f1_score(y, predicted, average="macro"),
        "AUROC": sk.roc_auc_score(one_hot, scores, average="macro"),
        "average precision": sk.average_precision_score(one_hot, scores, average="macro"),
    }
    return {name: metric.compute().tolist() for name, metric in metrics.items()}, witness


def lint(script: Path) -> list[dict[str, Any]]:
    """Run distlint over a script; return its findings."""
    command = [sys.executable, "-m", "distlint", "check", str(script), "--output-format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode not in (0, 1):
        raise RuntimeError(f"distlint ended with exit code {done.returncode}: {done.stderr}")
    findings: list[dict[str, Any]] = json.loads(done.stdout)
    return findings
