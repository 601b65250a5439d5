"""``*_step_end``, as code for replicas has it: the same under every strategy."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchmetrics.classification import BinaryAccuracy

from distmetrics.train import Module
from tests.strategies.common import assert_same, in_ranks, outcome, train


class Guide(Module):
    """Metrics are used on the main module alone, on what all replicas returned."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 1)
        self.accuracy = BinaryAccuracy()

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.layer(x).squeeze(1)
        losses = nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none")
        return {"losses": losses, "logits": logits.detach(), "y": y}

    def training_step_end(self, outputs):
        correct = (outputs["logits"] > 0) == outputs["y"].bool()
        self.log("train_accuracy", correct.float().mean(), on_step=False, on_epoch=True)
        return {"loss": outputs["losses"].mean()}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        return self.layer(x).squeeze(1).sigmoid(), y

    def validation_step_end(self, outputs):
        scores, y = outputs
        self.accuracy.update(scores, y)
        self.log("val_accuracy", self.accuracy)
        self.log("val_score", scores.mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def script(strategy, devices, batch_size):
    return outcome(*train(strategy, devices, module=Guide(), batch_size=batch_size))


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_dp(devices):
    assert_same(script("dp", devices, 12), script("single", 1, 12))


@pytest.mark.gloo
@pytest.mark.parametrize(("strategy", "devices"), [("ddp", 2), ("ddp2", 2), ("fsdp", 2)])
def test_ranks(strategy, devices):
    for found in in_ranks(2, script, strategy, devices, 6):
        assert_same(found, script("single", 1, 12))
