"""Strategies that split the model, in a loop of the user's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from distmetrics.errors import ConfigurationError
from distmetrics.runner import Runner
from distmetrics.strategies import FSDP
from tests.strategies.common import in_ranks
from tests.train.models import samples


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def loop(runner, model, optimizer):
    """Six updates of two steps each, and an evaluation between; return what was seen."""
    rank, world_size = runner.global_rank, runner.world_size
    model, optimizer = runner.setup(model, optimizer)
    x, y = samples(48).tensors
    seen = []
    for index in range(12):
        part = slice(index * 4, (index + 1) * 4)
        with runner.no_backward_sync(model, enabled=index % 2 == 0):
            logits = model(x[part][rank::world_size]).squeeze(1)
            runner.backward(nn.functional.binary_cross_entropy_with_logits(logits, y[part][rank::world_size]) / 2)
        if index % 2:
            norm = runner.clip_gradients(model, optimizer, max_norm=0.1)
            optimizer.step()
            optimizer.zero_grad()
            seen.append(0.0 if norm is None else float(norm))
        if index == 5:
            model.eval()
            with torch.no_grad():
                for _ in range(rank):  # ranks have different numbers of batches
                    model(x)
                seen.append(float(model(x).sum()))
            model.train()
    return seen, {name: value.clone() for name, value in model.state_dict().items()}


def run(strategy, devices):
    runner = Runner(strategy=strategy, devices=devices, accelerator="cpu")
    model = network()

    def body(runner):
        return loop(runner, model, torch.optim.AdamW(model.parameters(), lr=0.02))

    seen, weights = runner.launch(body)
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    return seen, weights


@pytest.mark.gloo
@pytest.mark.parametrize("options", [{}, {"wrap": (nn.Linear,)}])
def test_fsdp(options):
    expected = run("single", 1)
    for seen, weights in in_ranks(2, run, FSDP(**options), 2):
        assert seen == pytest.approx(expected[0], rel=1e-5)
        assert weights.keys() == expected[1].keys()
        for name, value in expected[1].items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)


def without_eval():
    runner = Runner(strategy="fsdp", devices=2, accelerator="cpu")

    def body(runner):
        model = runner.setup(network())
        with torch.no_grad(), pytest.raises(ConfigurationError, match=r"in parts\nDo:     model\.eval\(\)"):
            model(torch.zeros(1, 4))

    runner.launch(body)


@pytest.mark.gloo
def test_weights_in_parts_are_told():
    in_ranks(2, without_eval)
