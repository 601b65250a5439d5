"""One strategy in one world: what is logged, and the weights after ten steps, as JSON.

    python -m distmetrics.cli.verify_cell STRATEGY DEVICES OUT

A script of its own, since strategies may run it again for the other ranks. Ordinary user code otherwise: a module, a
data module with shards of its own, metrics as objects, a hand-made gather.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from torchmetrics import MeanSquaredError
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassAveragePrecision,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from distmetrics import all_gather_cat, sync_and_compute
from distmetrics.train import Callback, DataModule, Module, Trainer

__all__ = ["LAYOUTS", "Cell", "cell"]

CLASSES, WIDTH, BATCH, STEPS, SAMPLES = 3, 6, 12, 10, 24
LAYOUTS = ("even", "uneven", "one rank empty")
Cell = dict[str, dict[str, float] | list[float]]  # what was logged for each layout; "weights"


class Judged(Module):
    """A classifier that logs one number of every kind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        self.metrics = nn.ModuleDict(
            {
                "accuracy": MulticlassAccuracy(CLASSES, average="micro"),
                "macro F1": MulticlassF1Score(CLASSES, average="macro"),
                "AUROC": MulticlassAUROC(CLASSES),
                "average precision": MulticlassAveragePrecision(CLASSES),
                "RMSE": MeanSquaredError(squared=False),
            }
        )
        self.confusion = MulticlassConfusionMatrix(CLASSES)
        self.margins: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the mean loss of the batch."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Return scores and labels; what is done with them is up to the step's end, which sees the whole batch."""
        return {"logits": self.net(batch[0]), "labels": batch[1]}

    def validation_step_end(self, outputs: Any) -> None:
        """Update every metric, and keep what is gathered by hand."""
        scores, labels = outputs["logits"].float().softmax(1), outputs["labels"]
        metric: Any
        for name, metric in self.metrics.items():
            metric.update(*((scores[:, 0], (labels == 0).float()) if name == "RMSE" else (scores, labels)))
            self.log(name, metric)
        self.confusion.update(scores, labels)
        self.log("weighted loss", nn.functional.nll_loss(scores.log(), labels), batch_size=len(labels))
        self.margins.append(scores.max(1).values)

    def on_validation_epoch_end(self) -> None:
        """Compute what one number a step cannot be made of: a median by a gather, and a matrix."""
        mine = torch.cat(self.margins) if self.margins else torch.empty(0)
        self.margins.clear()
        everyone = all_gather_cat(mine, name="margins")
        self.log("gathered median", everyone.quantile(0.5), rank_zero_only=True)
        matrix = sync_and_compute(self.confusion, name="confusion matrix")
        self.confusion.reset()
        for place, count in enumerate(matrix.flatten().tolist()):
            self.log(f"confusion {place}", count, rank_zero_only=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, whose steps hide no difference of gradients."""
        return torch.optim.AdamW(self.parameters(), lr=0.05)


class Shards(DataModule):
    """Training data dealt out as one process would see it; validation data in shards of a given layout.

    A strategy with one process cuts each batch for its replicas: there the layout is one of batches.
    """

    def __init__(self, layout: str, devices: int) -> None:
        self.layout, self.devices = layout, devices
        generator = torch.Generator().manual_seed(1)
        y = torch.arange(BATCH * STEPS + SAMPLES) % CLASSES
        x = torch.randn(len(y), WIDTH, generator=generator) + nn.functional.one_hot(y, WIDTH)
        self.train_set = TensorDataset(x[: BATCH * STEPS], y[: BATCH * STEPS])
        self.val_set = TensorDataset(x[BATCH * STEPS :], y[BATCH * STEPS :])

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches of every W-th sample: together the ranks' n-th batches are the n-th of one process."""
        assert self.trainer is not None
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        mine = Subset(self.train_set, range(rank, len(self.train_set), world_size))
        return DataLoader(mine, batch_size=BATCH // world_size)

    def val_dataloader(self) -> DataLoader[Any]:
        """Batches of this rank's shard."""
        assert self.trainer is not None
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        if world_size == 1:
            size = {"even": 2 * self.devices, "uneven": 2 * self.devices + 1}.get(self.layout, self.devices - 1)
            return DataLoader(self.val_set, batch_size=max(1, size))
        first, last = bounds(self.layout, world_size)[rank : rank + 2]
        return DataLoader(Subset(self.val_set, range(first, last)), batch_size=4)


def bounds(layout: str, world_size: int) -> list[int]:
    """Return where each rank's shard begins, and the end.

    >>> bounds("uneven", 3), bounds("one rank empty", 3)
    ([0, 4, 12, 24], [0, 12, 24, 24])
    """
    if layout == "even":
        return [SAMPLES * rank // world_size for rank in range(world_size + 1)]
    if layout == "one rank empty":
        return [*bounds("even", world_size - 1), SAMPLES]
    total = world_size * (world_size + 1) // 2
    return [SAMPLES * (rank * (rank + 1) // 2) // total for rank in range(world_size + 1)]


class Keep(Callback):
    """Writes the trained weights, whole, from rank 0; ranks may be copies in other processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_fit_end(self, trainer: Trainer, module: Module) -> None:
        """Called on every rank: weights may have to be gathered."""
        weights = trainer.strategy.weights(module)
        if trainer.is_global_zero:
            values = [value for name in sorted(weights) for value in weights[name].flatten().double().tolist()]
            self.path.write_text(json.dumps(values))


def cell(strategy: str, devices: int, out: Path) -> Cell | None:
    """Train and validate; returns what is found, on rank 0 alone."""
    module, kept = Judged(), out.with_suffix(".weights.json")
    trainer = Trainer(
        strategy=strategy,
        devices=devices,
        accelerator="cpu",
        max_epochs=1,
        callbacks=[Keep(kept)],
        use_distributed_sampler=False,
        enable_progress_bar=False,
        default_root_dir=out.parent,
    )
    found: Cell = {}
    trainer.fit(
        module,
        datamodule=Shards("even", devices),
    )
    for layout in LAYOUTS if devices > 1 else LAYOUTS[:1]:
        (found[layout],) = trainer.validate(module, datamodule=Shards(layout, devices))
    if trainer.global_rank:
        return None
    return found | {"weights": json.loads(kept.read_text())}


def main() -> None:
    """Run one cell, and write it from rank 0."""
    strategy, devices, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    found = cell(strategy, devices, out)
    if found is not None:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
