"""One small job for every strategy, and what one process makes of it."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from distmetrics.launch.environment import ClusterEnvironment
from distmetrics.testing import run
from distmetrics.train import Trainer
from tests.run.models import Logistic, loader

LOCAL = {"train_loss_step"}


class Deep(Logistic):
    """Several layers, of sizes that do not divide by the number of ranks."""

    def __init__(self, lr=0.01):
        super().__init__(lr)
        self.before = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))
        self.after = nn.Linear(4, 4)

    def forward(self, x):
        return super().forward(self.after(self.before(x)))


def train(strategy, devices, *, module=None, batch_size=12, epochs=5, **flags):
    """Take 10 steps on global batches of 12, validating 7 samples; return module and trainer."""
    module = Logistic() if module is None else module
    flags = {"accelerator": "cpu", "max_epochs": epochs} | flags
    trainer = Trainer(strategy=strategy, devices=devices, **flags)
    trainer.fit(module, loader(24, batch_size), loader(7, 2, seed=1))
    return module, trainer


@functools.cache
def single(make=Logistic, clip=None, precision=None):
    flags = {"gradient_clip_val": clip, "precision": precision}
    return train("single", 1, module=make(), **flags)


def in_ranks(world_size, fn, *args):
    """Call ``fn(*args)`` in forks that share a process group, as scripts under a launcher do."""
    return run(world_size, _call, fn, args, backend="gloo")


def _call(comm, fn, args):
    return fn(*args)


def outcome(module, trainer):
    """Return what a run leaves behind, in a form that travels."""
    weights = {name: value.detach().clone() for name, value in module.state_dict().items()}
    values = {name: float(value) for name, value in trainer.callback_metrics.items()}
    values = {name: value for name, value in values.items() if name not in LOCAL}
    return weights, values, (trainer.current_epoch, trainer.global_step)


def assert_same(found, expected, *, atol=1e-6, rel=1e-6):
    """Compare final weights, whatever was logged, and the progress, of outcomes."""
    assert found[2] == expected[2] == (5, 10)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=atol)
    assert found[1] == pytest.approx(expected[1], rel=rel, abs=rel)


def step_of(call, method="training_step"):
    """Return a strategy's call as the step of a module: step(batch, batch_idx)."""
    return lambda *args: call((args, {}), method)


class Cluster(ClusterEnvironment):
    """Says what a scheduler would of two processes on this machine."""

    rank = main_port = 0
    world_size = local_world_size = 2
    main_address = "127.0.0.1"

    def __init__(self, rank, port):
        self.rank = self.local_rank = rank
        self.main_port = port
