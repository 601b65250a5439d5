"""One small job for every strategy, and what one process makes of it."""

from __future__ import annotations

import functools

import pytest
import torch

from distmetrics.train import Trainer
from tests.train.models import Logistic, loader

LOCAL = {"train_loss_step"}


def train(strategy, devices, *, module=None, batch_size=12, val=7, epochs=5, **flags):
    """Take 10 steps on global batches of 12, validating an odd number of samples; return module and trainer."""
    module = Logistic() if module is None else module
    trainer = Trainer(strategy=strategy, devices=devices, accelerator="cpu", max_epochs=epochs, **flags)
    trainer.fit(module, loader(24, batch_size), loader(val, 2, seed=1))
    return module, trainer


@functools.cache
def single(val=7, clip=None):
    return train("single", 1, val=val, gradient_clip_val=clip)


def values(trainer, without=LOCAL):
    return {name: float(value) for name, value in trainer.callback_metrics.items() if name not in without}


def assert_same(module, trainer, expected_module, expected, *, atol=1e-6, rel=1e-6):
    """Compare final weights, whatever was logged, and the progress."""
    weights = module.state_dict()
    assert weights.keys() == expected_module.state_dict().keys()
    for name, wanted in expected_module.state_dict().items():
        torch.testing.assert_close(weights[name], wanted, rtol=0, atol=atol, msg=lambda text, n=name: f"{n}: {text}")
    assert (trainer.current_epoch, trainer.global_step) == (expected.current_epoch, expected.global_step) == (5, 10)
    found, wanted = values(trainer), values(expected)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if name.endswith("count"):
            assert found[name] == value
        else:
            assert found[name] == pytest.approx(value, rel=rel, abs=rel), name
