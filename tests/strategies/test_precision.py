"""What numbers a model is computed in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.precision import Precision
from distmetrics.train import Trainer
from tests.strategies.common import train
from tests.train.models import Logistic


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        (None, "32-true"),
        (32, "32-true"),
        ("32", "32-true"),
        (64, "64-true"),
        ("64-true", "64-true"),
        (16, "16-mixed"),
        ("16-mixed", "16-mixed"),
        ("bf16", "bf16-mixed"),
        ("bf16-mixed", "bf16-mixed"),
        ("bf16-true", "bf16-true"),
    ],
)
def test_names(flag, name):
    assert Precision(flag).name == name


class Seen(Logistic):
    """Notes in which dtypes a step finds itself."""

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        self.dtypes = batch[0].dtype, self.layer.weight.dtype, logits.dtype, torch.zeros(1).dtype
        return nn.functional.binary_cross_entropy_with_logits(logits.float(), batch[1].float())


@pytest.mark.parametrize(
    ("precision", "batch", "weight", "logits", "made"),
    [
        (64, torch.float64, torch.float64, torch.float64, torch.float64),
        ("bf16-true", torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.bfloat16),
        ("bf16", torch.float32, torch.float32, torch.bfloat16, torch.float32),
        (16, torch.float32, torch.float32, torch.float16, torch.float32),
        (32, torch.float32, torch.float32, torch.float32, torch.float32),
    ],
)
def test_what_a_step_sees(precision, batch, weight, logits, made):
    module = Seen()
    trainer = Trainer(strategy="single", accelerator="cpu", precision=precision, max_epochs=1)
    trainer.fit(module, [(torch.randn(4, 4), torch.ones(4))])
    assert module.dtypes == (batch, weight, logits, made)
    assert torch.get_default_dtype() == torch.float32


def test_float16_scales_the_loss():
    module, trainer = train("single", 1, precision=16)
    expected, _ = train("single", 1)
    for found, wanted in zip(module.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-2)
    state = trainer.strategy.precision.state()
    assert state["grad_scaler"]["scale"] > 1
    other = Trainer(strategy="single", accelerator="cpu", precision=16).strategy
    other.precision.load_state({"grad_scaler": {**state["grad_scaler"], "scale": 8.0}})
    assert other.precision.state()["grad_scaler"]["scale"] == 8.0


class Own(torch.optim.SGD):
    def step(self, loss_of=None):
        return super().step(loss_of)


def test_a_closure_is_called_by_any_optimizer_but_not_with_a_scaled_loss():
    optimizer = Own([nn.Parameter(torch.ones(1))])
    assert Precision(32).step(optimizer, lambda: 3.0) == 3.0
    with pytest.raises(ConfigurationError, match=r"precision=16 scales the loss(.|\n)*'bf16'"):
        Precision(16).step(optimizer, lambda: 3.0)


class Overflows(Logistic):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (float("inf") if batch_idx == 0 else 1)


def test_a_step_that_overflows_is_left_out():
    module, _ = train("single", 1, module=Overflows(), precision=16, epochs=1)
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())
