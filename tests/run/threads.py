"""A strategy for tests: ranks are threads of this process, each with its own copy of everything.

Gradients are averaged after each backward, as by DDP. Thousands of worlds can be tried in the time
that processes take for one, and a wait that can't be met is decided.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager

import torch
from torch import nn

from distmetrics.collectives.ops import all_reduce, broadcast
from distmetrics.comm.threads import ThreadWorld
from distmetrics.strategies.base import Launcher, Strategy
from distmetrics.train import Trainer


class InThreads(Launcher):
    isolated = True

    def launch(self, strategy, fn, args):
        copies = [copy.deepcopy(args) for _ in range(strategy.devices)]
        return ThreadWorld(strategy.devices).run(lambda comm: fn(*copies[comm.rank]))


class Threads(Strategy):
    name = "threads"
    launcher = InThreads()

    def __init__(self) -> None:
        super().__init__()
        self.modules: list[nn.Module] = []
        self.quiet = False

    def bind(self, devices, accelerator):
        self.devices = devices

    def place(self, module):
        super().place(module)
        self._copy(dict(module.state_dict(keep_vars=True)))

    def align(self, module):
        self._copy(dict(module.named_buffers()))

    def _copy(self, tensors):
        with torch.no_grad():
            for name, value in broadcast(tensors, comm=self.comm()).items():
                tensors[name].copy_(value)

    def training_call(self, entry, optimizers):
        self.modules.append(entry.module)
        return entry

    @contextmanager
    def accumulate(self, step):
        self.quiet = True
        yield
        self.quiet = False

    def backward(self, loss):
        super().backward(loss)
        if self.quiet:
            return
        grads = [p.grad for module in self.modules for p in module.parameters() if p.grad is not None]
        with torch.no_grad():
            for grad, total in zip(grads, all_reduce(grads, comm=self.comm()), strict=True):
                grad.copy_(total / self.comm().world_size)


class TrainerThreads(Threads):
    """For the trainer: what a call returns is rank 0's."""

    def launch(self, fn, *args):
        return super().launch(fn, *args)[0]


def trainer(ranks: int = 1, **flags):
    """Return a trainer of one epoch on the CPU, in this process or in so many threads."""
    strategy = "single" if ranks == 1 else TrainerThreads()
    flags = {"strategy": strategy, "devices": ranks, "accelerator": "cpu", "max_epochs": 1} | flags
    return Trainer(**flags)
