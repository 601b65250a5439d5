"""A strategy for tests: ranks are threads of this process, each with its own copy of everything.

Thousands of worlds can be tried in the time that processes take for one, and a wait that can't be met is decided.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from distmetrics.collectives.ops import all_reduce
from distmetrics.comm.threads import ThreadWorld
from distmetrics.strategies.base import Strategy


class Threads(Strategy):
    name = "threads"
    isolated = True

    def bind(self, devices, accelerator):
        self.devices = devices

    def launch(self, fn, *args):
        copies = [copy.deepcopy(args) for _ in range(self.devices)]
        return ThreadWorld(self.devices).run(lambda comm: fn(*copies[comm.rank]))[0]

    def training_call(self, module, name, optimizers):
        def step(batch: Any, batch_idx: int) -> Any:
            if batch is None:
                return sum((p * 0).sum() for p in module.parameters())
            return module.training_step(batch, batch_idx)

        return step

    def update(self, module, optimizer, *, clip=None):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        with torch.no_grad():
            for p, total in zip(parameters, all_reduce([p.grad for p in parameters], comm=self.comm()), strict=True):
                p.grad = total / self.devices
        super().update(module, optimizer, clip=clip)
