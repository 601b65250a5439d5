"""Data parallel inside each machine, DistributedDataParallel across machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer

from distmetrics.strategies.base import TrainingStep
from distmetrics.strategies.devices import Devices
from distmetrics.strategies.dp import Replicated
from distmetrics.strategies.launchers import ScriptLaunch
from distmetrics.strategies.parallel import DataParallelStrategy, StepModule


class DDP2(ScriptLaunch, DataParallelStrategy):
    """One process a machine, and in it a replica a device, as in
    :class:`~distmetrics.strategies.dp.DP`.

    Gradients are averaged over the machines. The launcher starts one process on each machine
    (``torchrun --nnodes=2 --nproc-per-node=1``); ``devices`` is the number of replicas in it. What
    DP says about metrics and ``*_step_end`` holds here. A batch is a machine's, and cut into parts
    for its devices.

    Args:
        options: passed to ``DistributedDataParallel``.
    """

    name: ClassVar[str] = "ddp2"
    manual: ClassVar[bool] = False

    def bind(self, devices: Devices, accelerator: str) -> None:
        """Take over the trainer's flags; ``devices`` is the number of replicas in a process, "auto"
        every GPU.
        """
        super().bind(-1 if devices in ("auto", None) else devices, accelerator)

    @property
    def processes(self) -> int:
        """Number of ranks on this machine: one, unless the launcher starts more."""
        environment = self.environment()
        return 1 if environment is None else environment.local_world_size

    def setup(
        self, module: nn.Module, optimizers: Sequence[Optimizer]
    ) -> tuple[TrainingStep, list[Optimizer]]:
        """Run the training step on this machine's replicas, inside DistributedDataParallel."""
        step = Replicated(module, "training_step", self)
        return self.wrap(StepModule(module, step)), list(optimizers)

    def prepare(
        self, module: nn.Module, optimizers: Sequence[Optimizer]
    ) -> tuple[Callable[..., Any], list[Optimizer]]:
        """Run every call of the module on this machine's replicas, inside DistributedDataParallel."""
        return super().prepare(_Call(module, Replicated(module, "forward", self)), optimizers)

    def evaluator(self, module: nn.Module, name: str) -> Callable[..., Any]:
        """Run a step of an evaluation on this machine's replicas."""
        return Replicated(module, name, self)


class _Call(nn.Module):
    """A module whose call is another's: what DistributedDataParallel wraps."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, *args: Any) -> Any:
        return self.call(*args)
