"""One strategy in one world: what is logged, and the weights after ten steps, as JSON.

    python -m benchmarks.strategies.cell STRATEGY DEVICES OUT PART...

PART is float32 (train, and validate in each layout), uneven (train, ranks having different numbers
of batches) or bf16 (train). OUT is written anew after each, so that what follows may fail.
``xla-spmd`` is XLA's strategy with one process. The single process trains twice in bf16, on whole
batches and on the ranks' parts of them, as roundings are theirs. A script of its own, since
strategies may run it again for the other ranks. Ordinary user code otherwise: a module, a data
module with shards of its own, metrics as objects, a hand-made gather.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MeanSquaredError
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassAveragePrecision,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

from benchmarks.strategies.data import CLASSES, LAYOUTS, WIDTH, Shards, counts
from distmetrics import all_gather_cat, sync_and_compute
from distmetrics.errors import ConfigurationError
from distmetrics.train import Callback, Module, RunContext, Trainer

PARTS = ("float32", "uneven", "bf16")
IN_PARTS = "bf16 in parts"
# Of learning. At 0.05 one process in bf16 is 2.2e-3 away from its own float32, so that no strategy
# could be held to 2e-3: AdamW makes a full step of what rounding leaves of a gradient near 0.
RATES = {"float32": 0.05, "uneven": 0.05, "bf16": 0.01}
SPMD, LOADER = "xla-spmd", "/dataloader_idx_"
ONE_PROCESS = ("single", "dp", "ddp2", SPMD)
Cell = dict[str, Any]  # weights by part; "logged": the values by layout


class Metrics(nn.Module):
    """The metrics of one layout of the validation data."""

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

    def __init__(self, loaders: int = 1, part: str = "float32") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        self.kept = nn.ModuleList(Metrics() for _ in range(loaders))
        self.loader, self.rate = 0, RATES[part]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the mean loss of the batch."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_validation_batch_start(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Note whose batch it is: the end of a step is not told."""
        self.loader = dataloader_idx

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Return scores and labels, for the end of the step, which sees the whole batch."""
        return {"logits": self.net(batch[0]), "labels": batch[1]}

    def validation_step_end(self, outputs: Any) -> None:
        """Update every metric, and keep what is gathered by hand."""
        kept: Any = self.kept[self.loader]
        scores, labels = outputs["logits"].float().softmax(1), outputs["labels"]
        for name, metric in kept.logged.items():
            is_error = name == "RMSE"
            metric.update(
                scores[:, 0] if is_error else scores, (labels == 0).float() if is_error else labels
            )
            self.log(name, metric)
        kept.confusion.update(scores, labels)
        loss = nn.functional.nll_loss(scores.log(), labels)
        self.log("weighted loss", loss, batch_size=len(labels))
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
        return torch.optim.AdamW(self.parameters(), lr=self.rate)


class InParts(Judged):
    """Adds up the gradients of so many ranks' parts in one process, in float32.

    The trainer accumulates as many batches, but would divide the loss, not the gradients: bfloat16
    rounds the quotient.
    """

    def __init__(self, parts: int) -> None:
        super().__init__(part="bf16")
        self.parts = parts

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss so that a rank's is left of it."""
        return super().training_step(batch, batch_idx) * self.parts

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make means of the sums."""
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad /= self.parts


class Keep(Callback):
    """Writes the trained weights, whole, from rank 0; ranks may be copies in other processes.

    Fewer ranks than there must be would have the single process's weights, and prove nothing.
    """

    def __init__(self, path: Path, ranks: int) -> None:
        self.path, self.ranks = path, ranks

    def on_fit_start(self, trainer: RunContext, module: Module) -> None:
        """Refuse a world of another size."""
        require_count(trainer.world_size, self.ranks)

    def on_fit_end(self, trainer: RunContext, module: Module) -> None:
        """Called on every rank: weights may have to be gathered."""
        weights = trainer.strategy.weights(module)
        if trainer.is_global_zero:
            values: list[float] = []
            for name in sorted(weights):
                values += weights[name].flatten().double().tolist()
            self.path.write_text(json.dumps(values))


def require_count(count: int, wanted: int) -> None:
    """Refuse to compare another world than the one asked for."""
    if count != wanted:
        raise ConfigurationError(f"{count} ranks or devices are at work, not {wanted}")


def trainer_of(strategy: str, devices: int, out: Path, **flags: Any) -> Trainer:
    """Return the trainer of a cell, which keeps its weights beside ``out``."""
    chosen: Any = strategy
    if strategy == SPMD:
        from distmetrics.strategies.xla import XLA

        chosen = XLA(spmd=True)
    every = -1 if devices == 1 else devices  # a process for each device there is: 1 says it not
    ranks = 1 if strategy in ONE_PROCESS else devices
    return Trainer(
        strategy=chosen,
        devices={"single": 1, "tpu_spawn": every, SPMD: -1}.get(strategy, devices),
        accelerator="cpu",
        max_epochs=1,
        callbacks=[Keep(out.with_suffix(".weights.json"), ranks)],
        use_distributed_sampler=False,
        enable_progress_bar=False,
        default_root_dir=out.parent,
        **flags,
    )


def run(part: str, strategy: str, devices: int, out: Path) -> Cell:
    """Run one part; returns what it adds to the cell. The weights are written by rank 0 alone."""
    layouts = (LAYOUTS if devices > 1 else LAYOUTS[:1]) if part == "float32" else ()
    data = Shards(devices, layouts, counts(devices) if part == "uneven" else ())
    trainer = trainer_of(strategy, devices, out, precision="bf16" if part == "bf16" else None)
    trainer.fit(Judged(len(layouts), part), datamodule=data)
    if trainer.global_rank:
        return {}
    if strategy == SPMD:
        import torch_xla.runtime

        require_count(torch_xla.runtime.global_runtime_device_count(), devices)
    cell: Cell = {part: _weights(out)}
    if part == "float32":
        cell["logged"] = logged(trainer, layouts)
    if part == "bf16" and strategy == "single":
        flags = {"precision": "bf16", "accumulate_grad_batches": devices}
        trainer = trainer_of(strategy, devices, out, **flags)
        trainer.fit(InParts(devices), datamodule=Shards(devices, apart=True))
        cell[IN_PARTS] = _weights(out)
    return cell


def _weights(out: Path) -> list[float]:
    weights: list[float] = json.loads(out.with_suffix(".weights.json").read_text())
    return weights


def logged(trainer: Trainer, layouts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the values of the validation, by layout."""
    values: dict[str, dict[str, float]] = {layout: {} for layout in layouts}
    for label, value in trainer.callback_metrics.items():
        name, _, index = label.partition(LOADER)
        values[layouts[int(index or 0)]][name] = float(value)
    return values


def main() -> None:
    """Run the parts of one cell; rank 0 writes the results after each."""
    strategy, devices, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    cell: Cell = json.loads(out.read_text()) if out.exists() else {}
    for part in sys.argv[4:]:
        results = run(part, strategy, devices, out)
        cell |= results
        if part in results:
            out.write_text(json.dumps(cell))


if __name__ == "__main__":
    main()
