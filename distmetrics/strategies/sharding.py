"""A module sharded by torch's fully_shard: when its parameters are parts, when whole, and how one
becomes the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.parallel import StepModule
from distmetrics.tree import map_leaves

_PRIVATE = (
    "_is_fsdp_managed_module",
    "_fsdp_use_orig_params",
)  # what fully_shard leaves on modules
_HOOKS = ("_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")


class Sharding:
    """A module between being sharded and being whole again.

    Args:
        module: the user's.
        optimizers: of its parameters; they hold the parts from now on, in the same groups.
        shard: applies ``fully_shard`` to ``entry`` and what is in it.
        entry: what is called, and has the module inside; it must do nothing when called for its
            hooks alone.
        nothing: the arguments of such a call.

    Raises:
        ConfigurationError: an optimizer of tensors that are no parameters of the module.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        shard: Callable[[nn.Module], Any],
        *,
        entry: nn.Module,
        nothing: tuple[Any, ...] = (),
    ) -> None:
        self.module = module
        before = {id(parameter): name for name, parameter in module.named_parameters()}
        self.sharded: Any = shard(entry)
        self.groups: list[Any] = [
            part for part in self.sharded.modules() if isinstance(part, FSDPModule)
        ]
        self._whole = False
        self._reshard = True
        after = dict(module.named_parameters())
        for optimizer in optimizers:
            _repoint(optimizer, before, after)
        with torch.no_grad():
            self.sharded(*nothing)  # the first call says which group is the outermost

    def call(self, *args: Any) -> Any:
        """Call the entry, in which groups of parameters become whole one after another."""
        self.be_parts()
        return self.sharded(*args)

    def step(self, batch: Any, batch_idx: int) -> Any:
        """Take a training step, in which groups of parameters become whole one after another.

        Raises:
            ConfigurationError: there is no batch, and the order of several groups is not known
                without one.
        """
        self.be_parts()
        if batch is None and len(self.groups) > 1:
            raise ConfigurationError(
                "this rank has no batch for a training step, and FSDP with several groups needs "
                "one on every rank",
                likely="loaders of different length, which the trainer did not deal out itself.",
                do="give every rank as many batches, or say FSDP() without wrap=.",
            )
        return self.sharded(batch, batch_idx)

    @property
    def is_whole(self) -> bool:
        """Whether every parameter is whole on this rank."""
        return self._whole

    def be_whole(self) -> None:
        """Make every parameter whole on every rank, until :meth:`be_parts`; all ranks must call it."""
        if not self._whole:
            for group in self.groups:
                group.set_reshard_after_forward(False, recurse=False)
                group.unshard()
            self._whole = True

    def be_parts(self) -> None:
        """Give back what other ranks own; nothing is sent."""
        if self._whole:
            for group in self.groups:
                group.reshard()
                group.set_reshard_after_forward(self._reshard, recurse=False)
            self._whole = False

    def keep_between(self, reshard: bool) -> None:
        """Say whether whole parameters are given back between forward and backward."""
        self._reshard = reshard

    def undo(self) -> None:
        """Make the user's module a plain one, with whole parameters; all ranks must call it."""
        self.be_parts()
        made: dict[int, nn.Parameter] = {}
        for part in self.module.modules():
            parameters: dict[str, Any] = part._parameters
            for name, parameter in parameters.items():
                if isinstance(parameter, DTensor):
                    if id(parameter) not in made:
                        full = whole(parameter.detach())
                        made[id(parameter)] = nn.Parameter(
                            full, requires_grad=parameter.requires_grad
                        )
                    parameters[name] = made[id(parameter)]
        for part in self.module.modules():
            _unmark(part)


class HookedStep(StepModule):
    """The training step; a negative number of a batch is a call for its hooks alone."""

    def forward(self, batch: Any, batch_idx: int) -> Any:
        """Take a training step, or none."""
        return None if batch_idx < 0 else super().forward(batch, batch_idx)


def _repoint(
    optimizer: Optimizer, before: Mapping[int, str], after: Mapping[str, nn.Parameter]
) -> None:
    """Put the parts in the place of the parameters that an optimizer holds, with the states that it
    has of them.
    """
    states = dict(optimizer.state)
    optimizer.state.clear()
    for group in optimizer.param_groups:
        for index, old in enumerate(group["params"]):
            if id(old) not in before:
                raise ConfigurationError(
                    f"the {type(optimizer).__name__} holds a tensor of shape {list(old.shape)} "
                    "that is no parameter of "
                    "the module: FSDP can't shard it",
                    do="make it an attribute of the module, as an nn.Parameter.",
                )
            new = group["params"][index] = after[before[id(old)]]
            if old in states:
                optimizer.state[new] = {
                    key: part_like(value, new) for key, value in states[old].items()
                }


def whole(leaf: Any) -> Any:
    """Return a sharded tensor whole, anything else as it is; all ranks must call it."""
    if not isinstance(leaf, DTensor):
        return leaf
    kind = leaf.device_mesh.device_type
    moved: Any = leaf if leaf.device.type == kind else leaf.to(kind)
    return moved.full_tensor().to(leaf.device)


def part_like(value: Any, like: Tensor) -> Any:
    """Return this rank's part of a whole tensor, cut as ``like`` is; what has another shape stays
    as it is.
    """
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    kind = like.device_mesh.device_type
    cut = distribute_tensor(value.to(kind), like.device_mesh, like.placements, src_data_rank=None)
    return cut if cut.device == like.device else cut.to(like.device)


def whole_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's state dict with whole tensors; all ranks must call it."""
    state: dict[str, Any] = map_leaves(whole, optimizer.state_dict())
    return state


def load_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Put a state dict with whole tensors into an optimizer of parts."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = {
        index: {key: part_like(value, parameters[index]) for key, value in entry.items()}
        for index, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": entries})


def load_weights(module: nn.Module, weights: Mapping[str, Any]) -> None:
    """Put a whole state dict into a module of parts.

    Raises:
        RuntimeError: names or shapes differ, as torch says it.
    """
    mine = module.state_dict()
    cut = {
        name: part_like(value, mine[name]) if name in mine else value
        for name, value in weights.items()
    }
    module.load_state_dict(cut)


def _unmark(part: nn.Module) -> None:
    """Take fully_shard off a submodule that was a group of its own: its hooks, its class, its
    marks.
    """
    for name in _PRIVATE:
        vars(part).pop(name, None)
    for name in _HOOKS:
        hooks = vars(part)[name]
        for key, hook in list(hooks.items()):
            if getattr(getattr(hook, "hook", hook), "__module__", "").startswith(
                "torch.distributed.fsdp"
            ):
                del hooks[key]  # a local function of theirs: the module could not be pickled
    if not isinstance(part, FSDPModule):
        return
    from torch.distributed._composable_state import _module_state_mapping

    state: Any = part._get_fsdp_state()
    for handle in (state._pre_forward_hook_handle, state._post_forward_hook_handle):
        handle.remove()
    plain: type = type(part).__mro__[2]
    part.__class__ = plain
    _module_state_mapping.pop(part, None)
    for name in [name for name in vars(part) if "composable_api" in str(name)]:
        vars(part).pop(name)
