"""``python -m distmetrics demo``: the main job, end to end, on real data and real processes.

A network is trained, and metrics of its validation set are computed in the ways in which people
get such numbers.
"""

import importlib.util
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from distmetrics.comm.communicator import Communicator
from distmetrics.errors import MissingDependencyError, optional
from distmetrics.metrics.sync import sync_and_compute
from distmetrics.testing import run
from distmetrics.train import Module, Trainer

with optional("torchmetrics", "the demo"):
    from torchmetrics import MeanMetric, Metric
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassAUROC,
        MulticlassConfusionMatrix,
        MulticlassF1Score,
    )

RUNS = (("breast cancer", 2), ("digits", 4))
EPOCHS, BATCH = 8, 32
# What is imported, and what pip calls it: distlint is a folder of the checkout.
NEEDS = {"sklearn": "scikit-learn", "rich": "rich", "distlint": "./lint"}
BAD_SCRIPT = Path(__file__).parent / "data" / "bad_training.py"
_TOLERANCE = 1e-6  # relative, as float32 metrics allow; counts must be equal
_LEGEND = (
    "Padded sampler: torchmetrics' sync over what a DistributedSampler deals out, as most trainers "
    "evaluate. Of the matrix, the number of samples in it.\n"
)


def demo(*, as_json: bool) -> int:
    """Train, compare, lint, print; return 0 if every number of distmetrics is the single process's.

    ``as_json`` prints no tables.

    Raises:
        MissingDependencyError: a package that the demo needs is not installed.
    """
    for module, package in NEEDS.items():
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError.of(package, "the demo")
    sections = [run_section(data, world_size) for data, world_size in RUNS]
    findings = lint(BAD_SCRIPT)
    metrics = [ways for section in sections for ways in section["metrics"].values()]
    is_right = all(ways["distmetrics"]["equal"] for ways in metrics)
    if as_json:
        print(json.dumps({"sections": sections, "findings": findings}, indent=1))  # noqa: T201
    else:
        _show(sections, findings)
        verdict = "every number of distmetrics is the single process's"
        print(f"\n{verdict if is_right else 'distmetrics is WRONG somewhere'}.")  # noqa: T201
    return int(not is_right)


def run_section(data: str, world_size: int) -> dict[str, Any]:
    """Train with ddp_spawn, validate on uneven shards, and compute the truth in this process."""
    torch.manual_seed(0)
    train_set, (x, y), classes = load(data)
    module = Classifier(x.shape[1], classes)
    trainer = Trainer(
        strategy="ddp_spawn",
        devices=world_size,
        max_epochs=EPOCHS,
        enable_progress_bar=False,
        seed=0,
    )
    trainer.fit(module, DataLoader(train_set, batch_size=BATCH, shuffle=True))
    ranks = run(world_size, compare, module.net, data, backend="gloo")
    truth = values(evaluated(module.net, x, y, classes))
    alone = [rank["rank 0 alone"] for rank in ranks]
    means = {name: _mean([each[name] for each in alone]) for name in truth}
    ways = {"one process": truth, "mean of ranks": means, **ranks[0]}
    metrics = {
        name: {way: judged(found[name], true) for way, found in ways.items()}
        for name, true in truth.items()
    }
    shards = [last - first for first, last in itertools.pairwise(shard_bounds(len(y), world_size))]
    return {"data": data, "world_size": world_size, "shards": shards, "metrics": metrics}


def judged(value: Any, truth: Any) -> dict[str, Any]:
    """Compare a number, or a matrix of counts, with that of a single process."""
    expected = torch.tensor(truth, dtype=torch.float64)
    gap = torch.tensor(value, dtype=torch.float64) - expected
    allowed = 0.0 if expected.ndim else _TOLERANCE * abs(truth)
    is_equal = bool((gap.abs() <= allowed).all())
    return {"value": value, "difference": float(gap.sum()), "equal": is_equal}


def _mean(of_ranks: Sequence[Any]) -> Any:
    return torch.tensor(of_ranks, dtype=torch.float64).mean(dim=0).tolist()


def lint(script: Path) -> list[dict[str, Any]]:
    """Run distlint over a script; return its findings."""
    command = [sys.executable, "-m", "distlint", "check", str(script), "--output-format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode not in (0, 1):
        raise RuntimeError(f"distlint ended with exit code {done.returncode}: {done.stderr}")
    findings: list[dict[str, Any]] = json.loads(done.stdout)
    return findings


def _show(sections: Sequence[dict[str, Any]], findings: Sequence[dict[str, Any]]) -> None:
    """Print the tables and the linter's findings."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    screen = Console(highlight=False)
    screen.width = screen.width if screen.is_terminal else 120  # a file has no edge
    for section in sections:
        shards = " + ".join(map(str, section["shards"]))
        title = f"{section['data']}: {section['world_size']} processes, shards of {shards} samples"
        grid = Table("metric", title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
        for way in section["metrics"]["loss"]:
            grid.add_column(way, justify="right")
        for name, ways in section["metrics"].items():
            grid.add_row(name, *map(_cell, ways.values()))
        screen.print(grid, _LEGEND)
    screen.print(f"[bold]distlint check {BAD_SCRIPT.name}[/]: the kind of script that logs such:\n")
    lines = BAD_SCRIPT.read_text().splitlines()
    for each in findings:
        screen.print(f"line {each['line']}  {each['code']} {each['message']}", markup=False)
        screen.print(f"  {lines[each['line'] - 1].strip()}", markup=False)


def _cell(found: Mapping[str, Any]) -> str:
    """Return a value as rich shows it: green where it is right."""
    value = found["value"]
    text = f"{value:.5f}" if isinstance(value, float) else f"{sum(map(sum, value)):g}"
    if found["equal"]:
        return f"[green]{text}\nequal[/]"
    return f"[red]{text}\n{found['difference']:+.3g}[/]"


def load(name: str) -> tuple[TensorDataset, tuple[Tensor, Tensor], int]:
    """Load a bundled data set of scikit-learn in its own order, three fifths of it to train.

    Returns:
        training set, inputs and labels of the validation set, number of classes.
    """
    from sklearn import datasets

    loaders = {"digits": datasets.load_digits, "breast cancer": datasets.load_breast_cancer}
    data = loaders[name]()
    x = torch.tensor(data.data, dtype=torch.float32)
    y = torch.tensor(data.target, dtype=torch.int64)
    # The validation set is of a size that no even number of ranks divides.
    cut = len(x) * 3 // 5 + 1
    x = (x - x[:cut].mean(0)) / x[:cut].std(0).clamp(min=1e-3)
    return TensorDataset(x[:cut], y[:cut]), (x[cut:], y[cut:]), len(data.target_names)


def shard_bounds(samples: int, world_size: int) -> list[int]:
    """Return where contiguous shards in the ratio 1 : 2 : 3 … begin, and the end.

    >>> shard_bounds(100, 4)
    [0, 10, 30, 60, 100]
    """
    parts = [rank * (rank + 1) // 2 for rank in range(world_size + 1)]
    return [samples * part // parts[-1] for part in parts]


class Classifier(Module):
    """A small network."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, classes))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross entropy of a batch."""
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def evaluated(net: nn.Module, x: Tensor, y: Tensor, classes: int) -> dict[str, Metric]:
    """Return metrics of samples, batch by batch."""
    metrics = {
        "accuracy": MulticlassAccuracy(classes, average="micro"),
        "macro F1": MulticlassF1Score(classes, average="macro"),
        "AUROC": MulticlassAUROC(classes),
        "loss": MeanMetric(),
        "confusion matrix": MulticlassConfusionMatrix(classes),
    }
    with torch.no_grad():
        for inputs, labels in zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True):
            logits = net(inputs)
            loss = nn.functional.cross_entropy(logits, labels)
            for name, metric in metrics.items():
                given = (loss, len(labels)) if name == "loss" else (logits.softmax(1), labels)
                metric.update(*given)
    return metrics


def values(metrics: Mapping[str, Metric], *, sync: bool = True) -> dict[str, Any]:
    """Return what torchmetrics computes, with its own sync or none."""
    results = {}
    for name, metric in metrics.items():
        copy = metric.clone()
        copy._to_sync = sync
        results[name] = copy.compute().tolist()
    return results


def compare(comm: Communicator, net: nn.Module, data: str) -> dict[str, dict[str, Any]]:
    """Return what each way makes of the validation set, of which this rank has a shard."""
    _, (x, y), classes = load(data)
    first, last = shard_bounds(len(y), comm.world_size)[comm.rank : comm.rank + 2]
    metrics = evaluated(net, x[first:last], y[first:last], classes)
    # What most trainers evaluate: samples are repeated until all ranks have as many.
    sampler: DistributedSampler[Any] = DistributedSampler(
        TensorDataset(x, y), comm.world_size, comm.rank, shuffle=False
    )
    repeated = torch.tensor([*sampler])
    ours = sync_and_compute(metrics, comm=comm)
    return {
        "rank 0 alone": values(metrics, sync=False),
        "padded sampler": values(evaluated(net, x[repeated], y[repeated], classes)),
        "torchmetrics": values(metrics),
        "distmetrics": {name: value.tolist() for name, value in ours.items()},
    }
