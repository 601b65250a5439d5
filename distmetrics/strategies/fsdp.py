"""Weights, gradients and optimizer states shared out over ranks by torch's fully_shard (FSDP2)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from distmetrics.arguments import FLAG, POSITIVE, Takes, check
from distmetrics.errors import ConfigurationError
from distmetrics.strategies.base import Closure, Entry, Launcher, TrainingStep
from distmetrics.strategies.launchers import Script, Spawn
from distmetrics.strategies.split import SplitModule, SplitStrategy, replace_parameters
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


class FSDP(SplitStrategy):
    """Torch's FSDP2: weights, gradients and optimizer states are sharded over the ranks.

    Every rank is a run of the script, and keeps a part of every parameter. A training step holds
    one group of whole parameters at a time. After a call of the trainer the module is plain and
    whole again, on every rank.

    Args:
        wrap: classes of submodules that are groups of their own, such as a transformer's block;
            default one group for the whole module.
        reshard: True gives back whole parameters after the forward and gathers them again for the
            backward (ZeRO stage 3); False keeps them between the two (stage 2).
        replicas: number of groups of ranks that each hold the whole model, sharded inside the group
            (HSDP).
        cpu_offload: keep parts of parameters, gradients and optimizer states in the host's memory.
        reduce_dtype: dtype in which gradients are added up under ``precision="bf16-mixed"``.

    Raises:
        ConfigurationError: an argument is of another kind. In a fit: ``replicas`` does not divide
            the number of ranks, or an optimizer holds a tensor that is no parameter.

    >>> strategy = FSDP(wrap=[torch.nn.TransformerEncoderLayer], replicas=2)
    >>> Runner(strategy=strategy, devices=4, accelerator="cpu").world_size
    4
    >>> FSDP(replicas=0)
    Traceback (most recent call last):
    distmetrics.errors.ConfigurationError: FSDP: replicas must be positive and whole, got 0
    """

    name = "fsdp"
    launcher: Launcher = Script()
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
        sizes = self.mesh_sizes()
        mesh = init_device_mesh(
            self.device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )
        precision = MixedPrecisionPolicy(cast_forward_inputs=False)
        if self.precision.mixed:
            precision = MixedPrecisionPolicy(
                self.precision.dtype, self.reduce_dtype, cast_forward_inputs=False
            )
        offload = OffloadPolicy()
        if self.cpu_offload:
            offload = CPUOffloadPolicy(pin_memory=self.device_type == "cuda")
        return {
            "mesh": mesh,
            "reshard_after_forward": self.reshard,
            "mp_policy": precision,
            "offload_policy": offload,
        }

    def mesh_sizes(self) -> dict[str, int]:
        """Return the number of ranks along each axis of the mesh."""
        world_size = self.comm().world_size
        if world_size % self.replicas:
            raise ConfigurationError(
                f"replicas={self.replicas} does not divide the {world_size} ranks"
            )
        shard = {"shard": world_size // self.replicas}
        return shard if self.replicas == 1 else {"replicate": self.replicas, **shard}

    def training_call(self, entry: Entry, optimizers: Sequence[Optimizer]) -> TrainingStep:
        """Shard the module; the optimizers hold the parts in the place of the whole parameters."""
        sharded = _Sharded(entry, optimizers, self.wrap, self.reshard)
        self.modules.append(sharded)
        return sharded

    def be_parts(self) -> None:
        """Give back what other ranks own; nothing is sent."""
        for module in self.modules:
            module.be_parts()

    def clip(self, module: nn.Module, optimizer: Optimizer, **limits: Any) -> Tensor | None:
        """Clip by the norm over all ranks' parts."""
        norm: Tensor | None = _whole(super().clip(module, optimizer, **limits))
        return norm

    def step(self, module: nn.Module, optimizer: Optimizer, closure: Closure = None) -> Any:
        """Step this rank's parts."""
        self.be_parts()
        return super().step(module, optimizer, closure)

    def weights(self, module: nn.Module) -> dict[str, Any]:
        """Return the whole state dict; called on every rank."""
        were_whole = [sharded for sharded in self.modules if sharded.is_whole]
        self.be_parts()
        weights = map_leaves(_whole, dict(module.state_dict()))
        for sharded in were_whole:  # an evaluation is under way
            sharded.be_whole()
        return weights

    def load_weights(self, module: nn.Module, weights: StateDict) -> None:
        """Put a whole state dict into the module, each rank its parts."""
        self.be_parts()
        mine = module.state_dict()
        module.load_state_dict(
            {name: _part_like(value, mine.get(name)) for name, value in weights.items()}
        )

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's whole state dict; called on every rank."""
        return map_leaves(_whole, optimizer.state_dict())

    def load_optimizer_state(
        self, module: nn.Module, optimizer: Optimizer, state: StateDict
    ) -> None:
        """Put a whole state dict into the optimizer, each rank its parts."""
        parameters = parameters_of(optimizer)
        parts = {
            index: _parts_like(entry, parameters[index]) for index, entry in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": parts})


class FSDPSpawn(FSDP):
    """As :class:`FSDP`, in processes as of :class:`~distmetrics.strategies.DDPSpawn`.

    Arguments are those of :class:`FSDP`.

    >>> runner = Runner(strategy=FSDPSpawn(cpu_offload=True), devices=2, accelerator="cpu")
    >>> runner.world_size, runner.strategy.isolated
    (2, True)
    """

    name = "fsdp_spawn"
    launcher = Spawn()


class _Sharded(SplitModule):
    """A module between being sharded by ``shard``, a strategy's ``wrap``, and being plain again."""

    def __init__(
        self,
        entry: Entry,
        optimizers: Sequence[Optimizer],
        shard: Callable[[nn.Module], Any],
        reshard: bool,
    ) -> None:
        self.module = entry.module
        self._reshard = reshard
        wholes = list(self.module.parameters())
        self.engine = shard(entry)
        self.groups = [part for part in self.engine.modules() if isinstance(part, FSDPModule)]
        if len(self.groups) > 1:  # their order is not known without a batch
            self.without_batch = "FSDP() without wrap="
        parts = dict(zip(wholes, self.module.parameters(), strict=True))
        for optimizer in optimizers:
            _hold_parts(optimizer, parts)
        with torch.no_grad():
            self.engine()  # the first call says which group is the outermost

    def gather(self) -> None:
        """Make every parameter whole, and keep it so over forward passes."""
        for group in self.groups:
            group.set_reshard_after_forward(False, recurse=False)
            group.unshard()

    def give_back(self) -> None:
        """Keep this rank's parts alone."""
        for group in self.groups:
            group.reshard()
            group.set_reshard_after_forward(self._reshard, recurse=False)

    def share_gradients(self, enabled: bool) -> None:
        """Let the gradients of the next backward passes travel, or stay on each rank."""
        self.engine.set_requires_gradient_sync(enabled)

    def undo(self) -> None:
        """Make the user's module a plain one, with whole parameters; all ranks must call it."""
        self.be_parts()
        wholes: dict[Any, nn.Parameter] = {}
        for part in self.module.parameters():
            if isinstance(part, DTensor):
                wholes[part] = nn.Parameter(_whole(part.detach()), part.requires_grad)
        replace_parameters(self.module, wholes)
        for module in self.module.modules():
            _make_plain(module)


def _hold_parts(optimizer: Optimizer, parts: Mapping[Any, nn.Parameter]) -> None:
    """Give an optimizer the parts of the parameters that it holds, and the parts of its states."""
    states = dict(optimizer.state)
    optimizer.state.clear()
    for group in optimizer.param_groups:
        for index, parameter in enumerate(group["params"]):
            if parameter not in parts:
                raise ConfigurationError(
                    f"the {type(optimizer).__name__} holds a tensor of shape "
                    f"{list(parameter.shape)} that is no parameter of the module: FSDP can't "
                    "shard it",
                    do="make it an attribute of the module, as an nn.Parameter.",
                )
            part = group["params"][index] = parts[parameter]
            if parameter in states:
                optimizer.state[part] = _parts_like(states[parameter], part)


def _whole(leaf: Any) -> Any:
    """Return a sharded tensor whole, anything else as it is; all ranks must call it."""
    if not isinstance(leaf, DTensor):
        return leaf
    moved: Any = leaf.to(leaf.device_mesh.device_type)
    return moved.full_tensor().to(leaf.device)


def _part_like(value: Any, like: Any) -> Any:
    """Return this rank's part of a whole tensor, cut as ``like`` is; another shape as it is."""
    is_whole = isinstance(like, DTensor) and isinstance(value, Tensor)
    if not is_whole or value.shape != like.shape:
        return value
    mesh = like.device_mesh
    cut = distribute_tensor(value.to(mesh.device_type), mesh, like.placements, src_data_rank=None)
    return cut.to(like.device)


def _parts_like(state: Any, like: Tensor) -> Any:
    """Return this rank's parts of the tensors in an optimizer's state of one parameter."""
    return map_leaves(lambda value: _part_like(value, like), state)


def _make_plain(part: nn.Module) -> None:
    """Take fully_shard off a module: its marks, its hooks, its class."""
    for name, value in list(vars(part).items()):
        if name in ("_is_fsdp_managed_module", "_fsdp_use_orig_params") or "composable_api" in name:
            del vars(part)[name]
        elif "_hooks" in name and isinstance(value, dict):
            for key, hook in list(value.items()):
                owner = getattr(getattr(hook, "hook", hook), "__module__", None)
                if str(owner).startswith("torch.distributed.fsdp"):
                    del value[key]  # they refer to the group, with which nothing could be pickled
                    vars(part).get(f"{name}_with_kwargs", {}).pop(key, None)
    if isinstance(part, FSDPModule):
        part.__class__ = type(part).__mro__[2]
        _module_state_mapping.pop(part, None)
