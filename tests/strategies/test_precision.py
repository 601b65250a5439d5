"""What numbers a model is computed in."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.precision import Precision
from distmetrics.strategies.registry import resolve
from tests.run.models import Logistic
from tests.strategies.common import train

NAMES = {"64-true": (64, "64", "64-true"), "bf16-true": ("bf16-true",), "32-true": (32, None)}
NAMES |= {"bf16-mixed": ("bf16", "bf16-mixed"), "16-mixed": (16, "16-mixed")}
WEIGHTS = {"64-true": torch.float64, "bf16-true": torch.bfloat16}


class Overflows(Logistic):
    """Notes in which dtypes a step finds itself; its first loss is infinite."""

    def training_step(self, batch, batch_idx):
        made, logits = torch.zeros(1), self(batch[0])
        self.dtypes = [each.dtype for each in (batch[0], self.layer.weight, made, logits)]
        loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), batch[1].float())
        return loss * (float("inf") if batch_idx == 0 else 1)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_step_sees(name):
    assert {Precision(flag).name for flag in NAMES[name]} == {name}
    module, _ = train("single", 1, module=Overflows(), precision=NAMES[name][0], epochs=1)
    *own, logits = module.dtypes
    assert own == [WEIGHTS.get(name, torch.float32)] * 3
    assert logits == {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(name, own[0])
    assert torch.get_default_dtype() == torch.float32
    if name == "16-mixed":  # a step that overflows is left out
        assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


class Own(torch.optim.SGD):
    def step(self, loss_of=None):
        return super().step(loss_of)


def test_float16_scales_the_loss_and_keeps_the_scale():
    module, trainer = train("single", 1, precision=16)
    expected, _ = train("single", 1)
    weights = [[*each.parameters()] for each in (module, expected)]
    torch.testing.assert_close(*weights, rtol=0, atol=2e-2)
    state = trainer.strategy.precision.state()
    assert state["grad_scaler"]["scale"] > 1
    other = resolve("single", accelerator="cpu", precision=16).precision
    other.load_state({"grad_scaler": {**state["grad_scaler"], "scale": 8.0}})
    assert other.state()["grad_scaler"]["scale"] == 8.0
    optimizer = Own([nn.Parameter(torch.ones(1))])  # any optimizer is given a closure
    assert Precision(32).step(optimizer, lambda: 3.0) == 3.0
    with pytest.raises(ConfigurationError, match=r"precision=16 scales the loss(.|\n)*'bf16'"):
        Precision(16).step(optimizer, lambda: 3.0)
