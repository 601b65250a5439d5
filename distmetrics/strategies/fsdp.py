"""Weights, gradients and optimizer states shared out over ranks by torch's fully_shard (FSDP2)."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.optim import Optimizer

from distmetrics.arguments import FLAG, POSITIVE, Takes, check
from distmetrics.errors import ConfigurationError
from distmetrics.strategies.base import Closure, Entry, TrainingStep
from distmetrics.strategies.launchers import Script, Spawn
from distmetrics.strategies.sharding import Sharding, part_like, parts_like, whole
from distmetrics.strategies.split import SplitStrategy
from distmetrics.strategies.tensors import StateDict, parameters_of
from distmetrics.tree import map_leaves


def _are_module_classes(value: Any) -> bool:
    return isinstance(value, Collection) and all(
        isinstance(each, type) and issubclass(each, nn.Module) for each in value
    )


_TAKES = {
    "wrap": Takes(_are_module_classes, "a list of classes of modules"),
    "reshard": FLAG,
    "replicas": POSITIVE,
    "cpu_offload": FLAG,
    "reduce_dtype": Takes(
        lambda value: isinstance(value, torch.dtype), "a dtype such as torch.float32"
    ),
}


class FullyShardedStrategy(SplitStrategy):
    """Each rank keeps a part of every parameter; whole ones exist while a step needs them.

    Training steps hold one group of parameters at a time: ``wrap`` says which modules are groups of
    their own.

    Args:
        wrap: classes of submodules that are groups of their own, a transformer's block, say;
            default one group for the whole module.
        reshard: whether to give back whole parameters after the forward and gather them again for
            the backward (ZeRO stage 3), or keep them between the two (stage 2).
        replicas: HSDP: so many groups of ranks hold the whole model each, sharded inside the group.
        cpu_offload: keep parts of parameters, gradients and optimizer states in the host's memory.
        reduce_dtype: what gradients are added up in under ``precision="bf16-mixed"``.
    """

    scales_loss = False

    def __init__(
        self,
        *,
        wrap: Sequence[type[nn.Module]] = (),
        reshard: bool = True,
        replicas: int = 1,
        cpu_offload: bool = False,
        reduce_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        check(type(self).__name__, locals(), _TAKES)
        self.wrap_classes = tuple(wrap)
        self.reshard = reshard
        self.replicas = replicas
        self.cpu_offload = cpu_offload
        self.reduce_dtype = reduce_dtype

    def wrap(self, step: nn.Module) -> FSDPModule:
        """Shard ``step`` and the submodules that are groups; override it for a policy of your own.

        Args:
            step: its forward is the module's training step, its parameters are the module's.
        """
        options = self.options()
        for part in reversed(list(step.modules())):
            if part is not step and isinstance(part, self.wrap_classes):
                fully_shard(part, **options)
        return fully_shard(step, **options)

    def options(self) -> dict[str, Any]:
        """Return what every call of ``fully_shard`` gets."""
        dtype = self.precision.dtype if self.precision.mixed else None
        return {
            "mesh": self.mesh(),
            "reshard_after_forward": self.reshard,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=dtype,
                reduce_dtype=None if dtype is None else self.reduce_dtype,
                cast_forward_inputs=False,
            ),
            "offload_policy": CPUOffloadPolicy(pin_memory=self.device_type == "cuda")
            if self.cpu_offload
            else OffloadPolicy(),
        }

    def mesh(self) -> DeviceMesh:
        """Return the ranks as a mesh: one row, or with ``replicas`` so many rows."""
        sizes = self.mesh_sizes()
        return init_device_mesh(
            self.device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )

    def mesh_sizes(self) -> dict[str, int]:
        """Return the number of ranks along each axis of the mesh.

        Raises:
            ConfigurationError: the ranks can't be divided into so many groups.
        """
        world_size = self.comm().world_size
        if world_size % self.replicas:
            raise ConfigurationError(
                f"replicas={self.replicas} does not divide the {world_size} ranks"
            )
        sizes = {"replicate": self.replicas, "shard": world_size // self.replicas}
        if self.replicas == 1:
            del sizes["replicate"]
        return sizes

    def training_call(self, entry: Entry, optimizers: Sequence[Optimizer]) -> TrainingStep:
        """Shard the module; the optimizers hold the parts in the place of the whole parameters."""
        sharding = Sharding(entry, optimizers, self.wrap, self.reshard)
        self.modules.append(sharding)
        return sharding

    def clip(self, module: nn.Module, optimizer: Optimizer, **limits: Any) -> Tensor | None:
        """Clip by the norm over all ranks' parts."""
        self.be_parts()
        norm: Tensor | None = whole(super().clip(module, optimizer, **limits))
        return norm

    def step(self, module: nn.Module, optimizer: Optimizer, closure: Closure = None) -> Any:
        """Step this rank's parts."""
        self.be_parts()
        return super().step(module, optimizer, closure)

    def weights(self, module: nn.Module) -> dict[str, Any]:
        """Return the whole state dict; called on every rank."""
        were_whole = [sharding for sharding in self.modules if sharding.is_whole]
        self.be_parts()
        weights = {name: whole(value) for name, value in module.state_dict().items()}
        for sharding in were_whole:  # an evaluation is under way
            sharding.be_whole()
        return weights

    def load_weights(self, module: nn.Module, weights: StateDict) -> None:
        """Put a whole state dict into the module, each rank its parts."""
        self.be_parts()
        mine = module.state_dict()
        parts = {}
        for name, value in weights.items():
            parts[name] = part_like(value, mine.get(name))
        module.load_state_dict(parts)

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's whole state dict; called on every rank."""
        return map_leaves(whole, optimizer.state_dict())

    def load_optimizer_state(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        state: StateDict,
    ) -> None:
        """Put a whole state dict into the optimizer, each rank its parts."""
        parameters = parameters_of(optimizer)
        entries = {
            index: parts_like(entry, parameters[index]) for index, entry in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": entries})


class FSDP(FullyShardedStrategy):
    """Weights, gradients and optimizer states shared out; every rank is a run of the script.

    See :class:`FullyShardedStrategy` for the options. After a call the module is plain and whole
    again, on every rank.
    """

    name = "fsdp"
    launcher = Script()


class FSDPSpawn(FullyShardedStrategy):
    """As :class:`FSDP`, in processes that start with a call of the trainer and end with it."""

    name = "fsdp_spawn"
    launcher = Spawn()
