"""The whole model on every rank: DistributedDataParallel averages the gradients of a step."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.base import Entry, Launcher, Strategy, TrainingStep
from distmetrics.strategies.launchers import Fork, Script, Spawn


class DDP(Strategy):
    """One process for each device, each a run of the whole script; gradients are averaged over all.

    Nothing needs to be pickled, and attributes that a step sets are kept.

    Args:
        options: passed to ``DistributedDataParallel``: ``find_unused_parameters``,
            ``bucket_cap_mb`` and so on.

    >>> DDP(find_unused_parameters=True).options
    {'find_unused_parameters': True}
    """

    name = "ddp"
    launcher: Launcher = Script()

    def __init__(self, **options: Any) -> None:
        self.options = options

    def wrap(self, step: nn.Module) -> nn.Module:
        """Return ``step`` wrapped so that its backward averages the gradients; yours to override.

        Args:
            step: a module with the parameters of the user's; it is called with inputs and the name
                of a method.
        """
        return Averaged(step, type(self).__name__, **self.options)

    def training_call(self, entry: Entry, optimizers: Sequence[Optimizer]) -> TrainingStep:
        """Wrap the call by :meth:`wrap`, unless the model has nothing to learn."""
        learns = any(parameter.requires_grad for parameter in entry.parameters())
        return self.wrap(self.inner(entry)) if learns else entry

    def inner(self, entry: Entry) -> nn.Module:
        """Return what is wrapped."""
        return entry

    def accumulate(self, step: TrainingStep) -> AbstractContextManager[Any]:
        """Send no gradient; a wrapper of your own without ``no_sync`` sends them in each step."""
        context: AbstractContextManager[Any] = getattr(step, "no_sync", nullcontext)()
        return context

    def check_averaged(self, step: TrainingStep) -> None:
        """Check that the last backward pass has averaged all that it had to."""
        if isinstance(step, Averaged):
            step.check_averaged()


class DDPSpawn(DDP):
    """As :class:`DDP`, in processes that start with a call of the trainer and end with it.

    The script needs an ``if __name__ == "__main__":`` guard. The processes work on pickled copies:
    module, data, callbacks and trainer must be picklable. What comes back is rank 0's weights and
    the state of the trainer and of callbacks, but no other attribute that a step has set.

    Args:
        options: passed to ``DistributedDataParallel``.

    Raises:
        InputTypeError: in a call of the trainer: something cannot be pickled.

    >>> Runner(strategy=DDPSpawn(bucket_cap_mb=50), devices=2, accelerator="cpu").world_size
    2
    """

    name = "ddp_spawn"
    launcher = Spawn()


class DDPFork(DDP):
    """As :class:`DDPSpawn`, but the processes are forked: for notebooks.

    Args:
        options: passed to ``DistributedDataParallel``.

    Raises:
        ConfigurationError: in a call of the trainer: this process has a process group.

    >>> runner = Runner(strategy="ddp_notebook", devices=2, accelerator="cpu")
    >>> type(runner.strategy).__name__, runner.world_size
    ('DDPFork', 2)
    """

    name = "ddp_fork"
    launcher = Fork()


class Averaged(DistributedDataParallel):
    """Torch's wrapper, whose advice on parameters without a gradient is in terms of strategies."""

    def __init__(self, step: nn.Module, strategy: str, **options: Any) -> None:
        super().__init__(step, **options)
        self._strategy = strategy

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call what is wrapped, after a check of the backward pass before."""
        if torch.is_grad_enabled():
            self.check_averaged()
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]

    def check_averaged(self) -> None:
        """Check that the last backward pass has averaged all that it had to.

        Torch checks in its next forward alone: after the update, and never where no step follows.
        This is the same call, of a microsecond where all is well.

        Raises:
            ConfigurationError: parameters had no gradient, and options don't allow for that.
        """
        try:
            self.reducer._rebuild_buckets()
        except RuntimeError as error:
            indices = re.search(r"indices which did not receive grad .*: ([\d ]+)", str(error))
            if indices is None or self.find_unused_parameters:
                raise
            entry = next(each for each in self.modules() if isinstance(each, Entry))
            named = entry.module.named_parameters()
            names = [name for name, parameter in named if parameter.requires_grad]
            raise ConfigurationError(
                "some parameters got no gradient in the last backward pass, so that ranks could "
                f"not average: {', '.join(names[int(index)] for index in indices[1].split())}",
                likely="a part of the model that the loss does not depend on.",
                do=f"strategy={self._strategy}(find_unused_parameters=True), where steps "
                "use different parts of the model; else leave "
                "the part out of it, or freeze it by requires_grad_(False), before.",
                rank=dist.get_rank(),
            ) from error
