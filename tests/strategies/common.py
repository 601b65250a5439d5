"""One small job for every strategy, and what one process makes of it."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from distmetrics.comm.verdict import settle
from distmetrics.launch.spawn import launch
from distmetrics.train import Trainer
from tests.train.models import Logistic, loader

LOCAL = {"train_loss_step"}


class Deep(Logistic):
    """Several layers, of sizes that do not divide by the number of ranks."""

    def __init__(self, lr=0.01):
        super().__init__(lr)
        self.before = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))
        self.after = nn.Linear(4, 4)

    def forward(self, x):
        return super().forward(self.after(self.before(x)))


def train(strategy, devices, *, module=None, batch_size=12, val=7, epochs=5, **flags):
    """Take 10 steps on global batches of 12, validating an odd number of samples; return module and trainer."""
    module = Logistic() if module is None else module
    trainer = Trainer(strategy=strategy, devices=devices, accelerator="cpu", max_epochs=epochs, **flags)
    trainer.fit(module, loader(24, batch_size), loader(val, 2, seed=1))
    return module, trainer


@functools.cache
def single(make=Logistic, val=7, clip=None, precision=None):
    return train("single", 1, module=make(), val=val, gradient_clip_val=clip, precision=precision)


def in_ranks(world_size, fn, *args):
    """Call ``fn(*args)`` in forks that share a process group, as scripts under a launcher do; return all results."""
    return settle(launch(_call, world_size, fn, args, start_method="fork"))


def _call(comm, fn, args):
    return fn(*args)


def values(trainer, without=LOCAL):
    return {name: float(value) for name, value in trainer.callback_metrics.items() if name not in without}


def outcome(module, trainer):
    """Return what a run leaves behind, in a form that travels."""
    progress = trainer.current_epoch, trainer.global_step
    return {name: value.detach().clone() for name, value in module.state_dict().items()}, values(trainer), progress


def assert_same(found, expected, *, atol=1e-6, rel=1e-6):
    """Compare final weights, whatever was logged, and the progress, of outcomes."""
    weights, logged, progress = found
    expected_weights, expected_logged, expected_progress = expected
    assert progress == expected_progress == (5, 10)
    assert weights.keys() == expected_weights.keys()
    for name, wanted in expected_weights.items():
        torch.testing.assert_close(weights[name], wanted, rtol=0, atol=atol, msg=lambda text, n=name: f"{n}: {text}")
    assert logged.keys() == expected_logged.keys()
    for name, value in expected_logged.items():
        if name.endswith("count"):
            assert logged[name] == value
        else:
            assert logged[name] == pytest.approx(value, rel=rel, abs=rel), name


def step_of(call, method="training_step"):
    """Return a strategy's call as the step of a module: step(batch, batch_idx)."""
    return lambda *args: call((args, {}), method)
