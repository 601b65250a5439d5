"""DistributedDataParallel whose ranks keep a part of the optimizer's states each (ZeRO stage 1)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import Optimizer

from distmetrics.call_site import call_site
from distmetrics.collectives.ops import gather_objects
from distmetrics.errors import ConfigurationError
from distmetrics.strategies.base import Closure, Entry, Strategy, TrainingStep
from distmetrics.strategies.ddp import DDP
from distmetrics.strategies.launchers import Spawn
from distmetrics.strategies.tensors import StateDict, parameters_of, to_host


class ShardedUpdates(Strategy):
    """Each rank steps the parameters that it owns, and gives the new values to the others.

    The optimizer is the user's own object, so that schedulers and callbacks keep their hold on it:
    gradients of parameters that others own are taken away before it steps, and so it never makes
    states for them. (``ZeroRedundancyOptimizer`` would be another object, whose learning rates no
    scheduler reaches.)
    """

    whole_on_each_rank = False

    def training_call(self, entry: Entry, optimizers: Sequence[Optimizer]) -> TrainingStep:
        """Check that the optimizers can be shared out; the call is the mixed-in strategy's."""
        if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in optimizers):
            raise ConfigurationError(
                f"strategy={self.name!r} can't share out LBFGS, whose step needs all parameters",
                do="say strategy='ddp'.",
            )
        return super().training_call(entry, optimizers)

    def step(self, module: nn.Module, optimizer: Optimizer, closure: Closure = None) -> Any:
        """Step the parameters that this rank owns; share their new values."""
        comm, parameters = self.comm(), parameters_of(optimizer)
        self.precision.unscale(optimizer)  # an overflow in any gradient is every rank's
        owned: list[list[Tensor]] = [[] for _ in range(comm.world_size)]
        others = {}
        for parameter, owner in zip(parameters, owners_of(parameters, len(owned)), strict=True):
            owned[owner].append(parameter)
            if owner != comm.rank:
                others[parameter], parameter.grad = parameter.grad, None
        result = super().step(module, optimizer, closure)
        for parameter, gradient in others.items():
            parameter.grad = gradient
        with torch.no_grad():
            for owner, group in enumerate(owned):
                if group:
                    flat = comm.broadcast(parameters_to_vector(group), owner)
                    values = torch.split(flat, [parameter.numel() for parameter in group])
                    for parameter, value in zip(group, values, strict=True):
                        parameter.copy_(value.view_as(parameter))
        return result

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the whole state dict, brought together on the CPU of every rank."""
        mine, read = optimizer.state_dict(), dict[int, Any]
        parts = gather_objects(
            to_host(mine["state"]), read, "optimizer states", call_site(), comm=self.comm()
        )
        whole = {index: state for part in parts for index, state in part.items()}
        return {**mine, "state": dict(sorted(whole.items()))}

    def load_optimizer_state(
        self, module: nn.Module, optimizer: Optimizer, state: StateDict
    ) -> None:
        """Put a whole state dict into the optimizer: this rank's part of it is kept."""
        comm = self.comm()
        owners = owners_of(parameters_of(optimizer), comm.world_size)
        states = state["state"].items()
        owned = {index: entry for index, entry in states if owners[index] == comm.rank}
        optimizer.load_state_dict({**state, "state": owned})


def owners_of(parameters: Sequence[Tensor], world_size: int) -> list[int]:
    """Return each parameter's owner: the largest first, each to the rank that has least.

    >>> owners_of([torch.zeros(4), torch.zeros(3), torch.zeros(2)], 2)
    [0, 1, 1]
    """
    load = [0] * world_size
    sizes = [parameter.numel() for parameter in parameters]
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        owners[index] = load.index(min(load))
        load[owners[index]] += max(sizes[index], 1)
    return owners


class ShardedDDP(ShardedUpdates, DDP):
    """As :class:`~distmetrics.strategies.DDP`, with optimizer states sharded over the ranks.

    A rank holds the states of about ``1 / world_size`` of the parameters; gradients and weights are
    whole on each. Checkpoints hold the whole optimizer state.

    Args:
        options: passed to ``DistributedDataParallel``.

    Raises:
        ConfigurationError: in a fit: an optimizer is LBFGS.

    >>> runner = Runner(strategy=ShardedDDP(bucket_cap_mb=50), devices=2, accelerator="cpu")
    >>> runner.world_size, runner.strategy.options
    (2, {'bucket_cap_mb': 50})
    """

    name = "ddp_sharded"


class ShardedDDPSpawn(ShardedDDP):
    """As :class:`ShardedDDP`, in processes as of :class:`~distmetrics.strategies.DDPSpawn`.

    Args:
        options: passed to ``DistributedDataParallel``.

    >>> Runner(strategy=ShardedDDPSpawn(), devices=2, accelerator="cpu").strategy.isolated
    True
    """

    name = "ddp_sharded_spawn"
    launcher = Spawn()
