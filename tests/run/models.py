"""Modules and data that tests of runs share; at the top level, so that ranks can unpickle them."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from distmetrics.train import Module

loss_of = nn.functional.binary_cross_entropy_with_logits


def samples(count: int, *, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    y = (x.sum(dim=1) + torch.randn(count, generator=generator) > 0).float()
    y[:2] = torch.tensor([1.0, 0.0])[:count]  # torchmetrics warns where a class is missing
    return TensorDataset(x, y)


def loader(count: int, batch_size: int = 4, *, seed: int = 0, **options: object) -> DataLoader:
    return DataLoader(samples(count, seed=seed), batch_size=batch_size, **options)


class Streamed:
    """An iterable without a length."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class Plain(Module):
    """Logistic regression without metrics, for scripts that need not import torchmetrics."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 1)
        self.lr = lr

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).squeeze(1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = loss_of(self(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("train_count", len(y), on_step=False, on_epoch=True, reduce_fx="sum")
        return loss

    def validation_step(self, batch, batch_idx):
        self.validation_logits(batch)

    def validation_logits(self, batch):
        x, y = batch
        logits = self(x)
        self.log("val_loss", loss_of(logits, y))
        self.log("val_count", len(y), reduce_fx="sum")
        self.log("val_max", logits.max(), reduce_fx="max")
        self.log("val_min", logits.min(), reduce_fx="min")
        return logits

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Logistic(Plain):
    """Logistic regression that logs by every kind of reduction, and metrics."""

    def __init__(self, lr: float = 0.1) -> None:
        from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryF1Score

        super().__init__(lr)
        self.accuracy = BinaryAccuracy()
        self.scores = nn.ModuleDict({"f1": BinaryF1Score(), "auroc": BinaryAUROC()})

    def validation_step(self, batch, batch_idx):
        _, y = batch
        # torchmetrics takes logits for probabilities in a batch that lies in [0, 1].
        scores = self.validation_logits(batch).sigmoid()
        self.accuracy.update(scores, y)
        self.log("val_accuracy", self.accuracy)
        for name, metric in self.scores.items():
            metric.update(scores, y.int())
            self.log(f"val_{name}", metric)

    test_step = validation_step


def odd(base: type = Logistic, **methods):
    """Return an object of a class that overrides these methods; processes can't unpickle it."""
    return type("Odd", (base,), methods)()
