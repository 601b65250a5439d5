"""One strategy in one world: what is logged, and the weights after ten steps, as JSON.

    python -m distmetrics.cli.verify_cell STRATEGY DEVICES OUT PART...

PART is float32 (train, and validate in each layout), uneven (train, ranks having different numbers of batches) or bf16
(train). OUT is written anew after each, so that what follows may fail. ``xla-spmd`` is XLA's strategy with one process.
A script of its own, since strategies may run it again for the other ranks. Ordinary user code otherwise: a module, a
data module with shards of its own, metrics as objects, a hand-made gather.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
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

__all__ = ["LAYOUTS", "PARTS", "SPMD", "Cell", "counts"]

CLASSES, WIDTH, BATCH, STEPS, SAMPLES = 3, 6, 12, 10, 24
LAYOUTS = ("even", "uneven", "one rank empty")
PARTS = ("float32", "uneven", "bf16")
SPMD, LOADER = "xla-spmd", "/dataloader_idx_"
Cell = dict[str, Any]  # weights by part; "logged": the values by layout


class Metrics(nn.Module):
    """What is said of one layout of the validation data."""

    def __init__(self) -> None:
        super().__init__()
        self.logged = nn.ModuleDict(
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


class Judged(Module):
    """A classifier that logs one number of every kind, for each loader apart."""

    def __init__(self, loaders: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        self.kept = nn.ModuleList(Metrics() for _ in range(loaders))
        self.loader = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the mean loss of the batch."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Note whose batch it is: the end of a step is not told."""
        self.loader = dataloader_idx

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        """Return scores and labels; what is done with them is up to the step's end, which sees the whole batch."""
        return {"logits": self.net(batch[0]), "labels": batch[1]}

    def validation_step_end(self, outputs: Any) -> None:
        """Update every metric, and keep what is gathered by hand."""
        kept: Any = self.kept[self.loader]
        scores, labels = outputs["logits"].float().softmax(1), outputs["labels"]
        for name, metric in kept.logged.items():
            metric.update(*((scores[:, 0], (labels == 0).float()) if name == "RMSE" else (scores, labels)))
            self.log(name, metric)
        kept.confusion.update(scores, labels)
        self.log("weighted loss", nn.functional.nll_loss(scores.log(), labels), batch_size=len(labels))
        kept.margins.append(scores.max(1).values)

    def on_validation_epoch_end(self) -> None:
        """Compute what one number a step cannot be made of: a median by a gather, and a matrix."""
        kept: Any
        for index, kept in enumerate(self.kept):
            end = f"{LOADER}{index}" if len(self.kept) > 1 else ""
            mine = torch.cat(kept.margins) if kept.margins else torch.empty(0)
            kept.margins.clear()
            everyone = all_gather_cat(mine, name="margins")
            self.log(f"gathered median{end}", everyone.quantile(0.5), rank_zero_only=True)
            matrix = sync_and_compute(kept.confusion, name="confusion matrix")
            kept.confusion.reset()
            for place, count in enumerate(matrix.flatten().tolist()):
                self.log(f"confusion {place}{end}", count, rank_zero_only=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, whose steps hide no difference of gradients."""
        return torch.optim.AdamW(self.parameters(), lr=0.05)


class Shards(DataModule):
    """Training data dealt out as one process would see it; validation data in shards of each layout.

    A strategy with one process cuts each batch for its replicas: there the layout is one of batches.

    Args:
        devices: ranks, or replicas in one.
        layouts: of the validation data.
        steps: number of training batches of each rank; of one process each batch holds what all ranks' do.
    """

    def __init__(self, devices: int, layouts: Sequence[str] = (), steps: Sequence[int] = ()) -> None:
        self.devices, self.layouts = devices, layouts
        self.steps = steps or [STEPS] * devices
        generator = torch.Generator().manual_seed(1)
        y = torch.arange(BATCH * STEPS + SAMPLES) % CLASSES
        x = torch.randn(len(y), WIDTH, generator=generator) + nn.functional.one_hot(y, WIDTH)
        self.train_set = TensorDataset(x[: BATCH * STEPS], y[: BATCH * STEPS])
        self.val_set = TensorDataset(x[BATCH * STEPS :], y[BATCH * STEPS :])

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches of every W-th sample: together the ranks' n-th batches are the n-th of one process."""
        assert self.trainer is not None
        alone = self.trainer.world_size == 1
        mine = range(self.devices) if alone else [self.trainer.global_rank]
        batches = [
            [sample for sample in range(BATCH * step, BATCH * (step + 1)) if sample % self.devices in there]
            for step in range(STEPS)
            if (there := {rank for rank in mine if step < self.steps[rank]})
        ]
        return DataLoader(self.train_set, batch_sampler=batches)

    def val_dataloader(self) -> list[DataLoader[Any]] | None:
        """Batches of this rank's shards, a loader for each layout."""
        return [self._shard(layout) for layout in self.layouts] or None

    def _shard(self, layout: str) -> DataLoader[Any]:
        assert self.trainer is not None
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        if world_size == 1:
            size = {"even": 2 * self.devices, "uneven": 2 * self.devices + 1}.get(layout, self.devices - 1)
            return DataLoader(self.val_set, batch_size=max(1, size))
        first, last = bounds(layout, world_size)[rank : rank + 2]
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


def counts(devices: int) -> list[int]:
    """Return how many training batches each rank has in uneven training: from all to none.

    >>> counts(3)
    [10, 5, 0]
    """
    return [STEPS * (devices - 1 - rank) // (devices - 1) for rank in range(devices)]


def made(strategy: str, devices: int, out: Path, **flags: Any) -> Trainer:
    """Return the trainer of a cell, which keeps its weights beside ``out``."""
    chosen: Any = strategy
    if strategy == SPMD:
        from distmetrics.strategies.xla import XLA

        chosen = XLA(spmd=True)
    return Trainer(
        strategy=chosen,
        devices={"single": 1, "tpu_spawn": -1, SPMD: -1}.get(strategy, devices),
        accelerator="cpu",
        max_epochs=1,
        callbacks=[Keep(out.with_suffix(".weights.json"))],
        use_distributed_sampler=False,
        enable_progress_bar=False,
        default_root_dir=out.parent,
        **flags,
    )


def run(part: str, strategy: str, devices: int, out: Path) -> Cell:
    """Run one part; returns what it adds to the cell. The weights are written by rank 0 alone."""
    layouts = (LAYOUTS if devices > 1 else LAYOUTS[:1]) if part == "float32" else ()
    module = Judged(loaders=len(layouts))
    trainer = made(strategy, devices, out, precision="bf16" if part == "bf16" else None)
    trainer.fit(module, datamodule=Shards(devices, layouts, counts(devices) if part == "uneven" else ()))
    if trainer.global_rank:
        return {}
    found: Cell = {part: json.loads(out.with_suffix(".weights.json").read_text())}
    if part == "float32":
        found["logged"] = logged(trainer, layouts)
    return found


def logged(trainer: Trainer, layouts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the values of the validation, by layout."""
    found: dict[str, dict[str, float]] = {layout: {} for layout in layouts}
    for label, value in trainer.callback_metrics.items():
        name, _, index = label.partition(LOADER)
        found[layouts[int(index or 0)]][name] = float(value)
    return found


def main() -> None:
    """Run the parts of one cell; rank 0 writes what is found after each."""
    strategy, devices, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    cell: Cell = json.loads(out.read_text()) if out.exists() else {}
    for part in sys.argv[4:]:
        found = run(part, strategy, devices, out)
        cell |= found
        if part in found:
            out.write_text(json.dumps(cell))


if __name__ == "__main__":
    main()
