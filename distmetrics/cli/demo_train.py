"""What the demo trains, and the ways in which people get each number.

Ordinary user code: a module, a data module with shards of its own, metrics as objects.
"""

from collections.abc import Iterable, Mapping
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
from distmetrics.comm.communicator import Communicator
from distmetrics.testing.recording import RecordingCommunicator, counted_torch_calls
from distmetrics.train import DataModule, Module

BATCH = 32


def load(name: str) -> tuple[TensorDataset, TensorDataset, int]:
    """Load a bundled data set of scikit-learn in its own order, three fifths of it to train.

    Returns: training set, validation set, number of classes.
    """
    from sklearn import datasets

    loaders = {"digits": datasets.load_digits, "breast cancer": datasets.load_breast_cancer}
    data = loaders[name]()
    x = torch.tensor(data.data, dtype=torch.float32)
    y = torch.tensor(data.target, dtype=torch.int64)
    # The validation set is of a size that no even number of ranks divides.
    cut = len(x) * 3 // 5 + 1
    scale = x[:cut].std(0).clamp(min=1e-3)
    middle = x[:cut].mean(0)
    x = (x - middle) / scale
    train_set = TensorDataset(x[:cut], y[:cut])
    val_set = TensorDataset(x[cut:], y[cut:])
    return train_set, val_set, len(data.target_names)


def shard_bounds(samples: int, world_size: int) -> list[int]:
    """Return where contiguous shards in the ratio 1 : 2 : 3 … begin, and the end.

    >>> shard_bounds(100, 4)
    [0, 10, 30, 60, 100]
    """
    parts = [rank * (rank + 1) // 2 for rank in range(world_size + 1)]
    return [samples * part // parts[-1] for part in parts]


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
        bounds = shard_bounds(len(self.val_set), comm.world_size)
        mine = range(bounds[comm.rank], bounds[comm.rank + 1])
        return DataLoader(Subset(self.val_set, mine), batch_size=BATCH)


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


def update(metrics: Mapping[str, Metric], logits: Tensor, y: Tensor) -> None:
    """Update all metrics with one batch."""
    for name, metric in metrics.items():
        if name == "loss":
            loss = nn.functional.cross_entropy(logits, y)
            metric.update(loss, len(y))
        else:
            metric.update(logits.softmax(dim=1), y)


class Classifier(Module):
    """A small network that logs its metrics the right way: as objects."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        hidden = nn.Linear(features, 32)
        self.net = nn.Sequential(hidden, nn.ReLU(), nn.Linear(32, classes))
        metrics = make_metrics(classes)
        # A logger takes single numbers.
        del metrics["confusion matrix"]
        self.metrics = nn.ModuleDict(metrics)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Cross entropy of a batch."""
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Update every metric, and log it."""
        x, y = batch
        update(cast("dict[str, Metric]", self.metrics), self.net(x), y)
        for name, metric in self.metrics.items():
            self.log(name, metric)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def evaluated(net: nn.Module, classes: int, batches: Iterable[Any]) -> dict[str, Metric]:
    """Return metrics of batches."""
    metrics = make_metrics(classes)
    with torch.no_grad():
        for x, y in batches:
            update(metrics, net(x), y)
    return metrics


def values(metrics: Mapping[str, Metric], *, sync: bool = True) -> dict[str, Any]:
    """Return what torchmetrics computes, with its own sync or none."""
    results = {}
    for name, metric in metrics.items():
        copy = metric.clone()
        copy._to_sync = sync
        results[name] = copy.compute().tolist()
    return results


def compare(comm: Communicator, net: nn.Module, data: str) -> dict[str, Any]:
    """Return what each way makes of this rank's shard, and how many collectives it took."""
    source = ShardedData(data)
    metrics = evaluated(net, source.classes, source.val_dataloader())
    # What most trainers evaluate: samples are repeated until all ranks have as many.
    sampler: DistributedSampler[Any] = DistributedSampler(
        source.val_set, comm.world_size, comm.rank, shuffle=False
    )
    batches = DataLoader(source.val_set, BATCH, sampler=sampler)
    padded = evaluated(net, source.classes, batches)
    with counted_torch_calls() as calls:
        theirs = values(metrics)
    recording = RecordingCommunicator(comm)
    ours = distmetrics.sync_and_compute(metrics, comm=recording)
    ways = {
        "padded sampler": values(padded),
        "torchmetrics": theirs,
        "distmetrics": {name: value.tolist() for name, value in ours.items()},
    }
    counts = {"torchmetrics": calls.total(), "distmetrics": len(recording.calls)}
    return {"alone": values(metrics, sync=False), "ways": ways, "collectives": counts}
