"""What the demo trains, and the five ways in which it gets each number.

Ordinary user code: a module, a data module with shards of its own, metrics as objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassAveragePrecision,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

import distmetrics
from distmetrics.comm.record import RecordingCommunicator, counted_torch_calls
from distmetrics.train import DataModule, Module

BATCH = 32


def load(name: str) -> tuple[TensorDataset, TensorDataset, int]:
    """Load a bundled data set of scikit-learn in its own order, three fifths of it to train.

    Returns: training set, validation set, number of classes.
    """
    from sklearn import datasets

    data = {"digits": datasets.load_digits, "breast cancer": datasets.load_breast_cancer}[name]()
    x = torch.tensor(data.data, dtype=torch.float32)
    y = torch.tensor(data.target, dtype=torch.int64)
    cut = len(x) * 3 // 5 + 1  # leaves a validation set that no even number of ranks divides
    x = (x - x[:cut].mean(0)) / x[:cut].std(0).clamp(min=1e-3)
    return TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut:], y[cut:]), len(data.target_names)


def shard_bounds(samples: int, world_size: int) -> list[int]:
    """Return where contiguous shards in the ratio 1 : 2 : 3 … begin, and the end.

    >>> shard_bounds(100, 4)
    [0, 10, 30, 60, 100]
    """
    total = world_size * (world_size + 1) // 2
    return [samples * (rank * (rank + 1) // 2) // total for rank in range(world_size + 1)]


class ShardedData(DataModule):
    """A data set whose validation part lies in shards of different size, one a rank."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.train_set, self.val_set, self.classes = load(name)

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches of every W-th sample of the training set."""
        comm = distmetrics.current()
        mine = range(comm.rank, len(self.train_set), comm.world_size)
        return DataLoader(Subset(self.train_set, mine), batch_size=BATCH, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Batches of this rank's shard."""
        comm = distmetrics.current()
        first, last = shard_bounds(len(self.val_set), comm.world_size)[comm.rank : comm.rank + 2]
        return DataLoader(Subset(self.val_set, range(first, last)), batch_size=BATCH)


LOGGED = ("accuracy", "macro F1", "AUROC", "average precision")


def make_metrics(classes: int) -> dict[str, Metric]:
    """Return the metrics of the demo, by the name that the table gives them."""
    return {
        "accuracy": MulticlassAccuracy(classes, average="micro"),
        "macro F1": MulticlassF1Score(classes, average="macro"),
        "AUROC": MulticlassAUROC(classes),
        "average precision": MulticlassAveragePrecision(classes),
        "loss": MeanMetric(),
        "confusion matrix": MulticlassConfusionMatrix(classes),
    }


def update(metrics: Mapping[str, Metric], logits: Tensor, y: Tensor) -> Tensor:
    """Update all metrics with one batch; return the batch's loss."""
    loss = nn.functional.cross_entropy(logits, y)
    for name, metric in metrics.items():
        if name == "loss":
            metric.update(loss, len(y))
        else:
            metric.update(logits.softmax(dim=1), y)
    return loss


class Classifier(Module):
    """A small network that reports what each way of syncing makes of its validation."""

    def __init__(self, val_set: TensorDataset, classes: int, report: Path) -> None:
        super().__init__()
        features = val_set.tensors[0].shape[1]
        self.net = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, classes))
        self.metrics = nn.ModuleDict(make_metrics(classes))
        self.classes = classes
        self.val_set = val_set
        self.report = report

    @property
    def by_name(self) -> dict[str, Metric]:
        """The metrics, by the name that the table gives them."""
        return cast("dict[str, Metric]", dict(self.metrics.items()))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross entropy of a batch."""
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train loss", loss)
        return loss

    def on_validation_epoch_start(self) -> None:
        """Begin with empty metrics; those that are logged the trainer resets itself."""
        for metric in self.by_name.values():
            metric.reset()

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Update every metric, and log them the right way: metrics as objects."""
        x, y = batch
        loss = update(self.by_name, self.net(x), y)
        self.log("loss", loss)
        for name in LOGGED:
            self.log(name, self.metrics[name])

    def on_validation_epoch_end(self) -> None:
        """Compare the ways on this epoch's state."""
        results = compare(self.by_name, self.padded_metrics())
        if self.trainer.is_global_zero:
            self.report.write_text(json.dumps(results))

    def padded_metrics(self) -> dict[str, Metric]:
        """Evaluate again on what DistributedSampler deals out, which repeats samples."""
        comm = distmetrics.current()
        sampler: DistributedSampler[Any] = DistributedSampler(
            self.val_set, comm.world_size, comm.rank, shuffle=False
        )
        metrics = make_metrics(self.classes)
        for x, y in DataLoader(self.val_set, batch_size=BATCH, sampler=sampler):
            update(metrics, self.net(x), y)
        return metrics

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def compare(metrics: Mapping[str, Metric], padded: Mapping[str, Metric]) -> dict[str, Any]:
    """Compute every metric in the ways that people do; the same result on every rank.

    Args:
        metrics: with this rank's shard in them.
        padded: with what a padding sampler would have dealt this rank; synced by torchmetrics.
    """
    alone = {name: _alone(metric) for name, metric in metrics.items()}
    of_ranks = distmetrics.all_gather_object(alone, name="demo")
    theirs, their_calls, our_calls = {}, {}, {}
    for name, metric in metrics.items():
        with counted_torch_calls() as calls:
            theirs[name] = metric.clone().compute().tolist()
        their_calls[name] = calls.total()
        recording = RecordingCommunicator(distmetrics.current())
        distmetrics.sync_and_compute(metric, comm=recording, name=name)
        our_calls[name] = len(recording.calls)
    recording = RecordingCommunicator(distmetrics.current())
    ours = distmetrics.sync_and_compute(metrics, comm=recording)
    return {
        "rank 0 alone": of_ranks[0],
        "mean of ranks": {name: _mean([values[name] for values in of_ranks]) for name in metrics},
        "padded sampler": {name: metric.compute().tolist() for name, metric in padded.items()},
        "torchmetrics": theirs,
        "distmetrics": {name: value.tolist() for name, value in ours.items()},
        "collectives": {
            "torchmetrics": their_calls,
            "distmetrics": our_calls,
            "together": len(recording.calls),
        },
    }


def _alone(metric: Metric) -> Any:
    """Return this rank's value alone, as a metric computed without sync gives it."""
    copy = metric.clone()
    copy._to_sync = False
    return copy.compute().tolist()


def _mean(values: list[Any]) -> Any:
    return torch.tensor(values, dtype=torch.float64).mean(dim=0).tolist()
