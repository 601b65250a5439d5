"""What numbers a model is computed in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.precision import Precision
from distmetrics.strategies.registry import resolve
from distmetrics.train import Trainer
from tests.run.models import Logistic
from tests.strategies.common import train


class Seen(Logistic):
    """Notes in which dtypes a step finds itself."""

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        made = torch.zeros(1)
        self.dtypes = [each.dtype for each in (batch[0], self.layer.weight, logits, made)]
        return nn.functional.binary_cross_entropy_with_logits(logits.float(), batch[1].float())


@pytest.mark.parametrize(
    ("flags", "name", "dtypes"),
    [
        ((64, "64", "64-true"), "64-true", [torch.float64] * 4),
        (("bf16-true",), "bf16-true", [torch.bfloat16] * 4),
        (
            ("bf16", "bf16-mixed"),
            "bf16-mixed",
            [torch.float32, torch.float32, torch.bfloat16, torch.float32],
        ),
        (
            (16, "16-mixed"),
            "16-mixed",
            [torch.float32, torch.float32, torch.float16, torch.float32],
        ),
        ((32, None), "32-true", [torch.float32] * 4),
    ],
)
def test_what_a_step_sees(flags, name, dtypes):
    assert {Precision(flag).name for flag in flags} == {name}
    module = Seen()
    trainer = Trainer(strategy="single", accelerator="cpu", precision=flags[0], max_epochs=1)
    trainer.fit(module, [(torch.randn(4, 4), torch.ones(4))])
    assert module.dtypes == dtypes
    assert torch.get_default_dtype() == torch.float32


class Overflows(Logistic):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (float("inf") if batch_idx == 0 else 1)


def test_float16_scales_the_loss_and_leaves_out_a_step_that_overflows():
    module, trainer = train("single", 1, precision=16)
    expected, _ = train("single", 1)
    weights = [[*each.parameters()] for each in (module, expected)]
    torch.testing.assert_close(*weights, rtol=0, atol=2e-2)
    state = trainer.strategy.precision.state()
    assert state["grad_scaler"]["scale"] > 1
    other = resolve("single", accelerator="cpu", precision=16).precision
    other.load_state({"grad_scaler": {**state["grad_scaler"], "scale": 8.0}})
    assert other.state()["grad_scaler"]["scale"] == 8.0
    module, _ = train("single", 1, module=Overflows(), precision=16, epochs=1)
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


class Own(torch.optim.SGD):
    def step(self, loss_of=None):
        return super().step(loss_of)


def test_a_closure_is_called_by_any_optimizer_but_not_with_a_scaled_loss():
    optimizer = Own([nn.Parameter(torch.ones(1))])
    assert Precision(32).step(optimizer, lambda: 3.0) == 3.0
    with pytest.raises(ConfigurationError, match=r"precision=16 scales the loss(.|\n)*'bf16'"):
        Precision(16).step(optimizer, lambda: 3.0)
