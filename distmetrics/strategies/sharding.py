"""A module sharded by torch's fully_shard: in parts, whole, or plain again; its state dicts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from distmetrics.errors import ConfigurationError
from distmetrics.strategies.base import Entry
from distmetrics.strategies.split import SplitModule

# What fully_shard leaves on modules.
_MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")
_HOOKS = ("_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")


class Sharding(SplitModule):
    """A module between being sharded and being plain again.

    Args:
        entry: what is called, and has the user's module inside.
        optimizers: of its parameters; they hold the parts from now on, in the same groups.
        shard: applies ``fully_shard`` to ``entry`` and what is in it.
        reshard: whether whole parameters are given back between forward and backward.

    Raises:
        ConfigurationError: an optimizer of tensors that are no parameters of the module.
    """

    def __init__(
        self,
        entry: Entry,
        optimizers: Sequence[Optimizer],
        shard: Callable[[nn.Module], Any],
        reshard: bool,
    ) -> None:
        self.module = module = entry.module
        names = {parameter: name for name, parameter in module.named_parameters()}
        self.engine = shard(entry)
        self.groups = [part for part in self.engine.modules() if isinstance(part, FSDPModule)]
        if len(self.groups) > 1:  # their order is not known without a batch
            self.without_batch = "FSDP with several groups", "FSDP() without wrap="
        self._reshard = reshard
        parts = dict(module.named_parameters())
        part_of = {parameter: parts[name] for parameter, name in names.items()}
        for optimizer in optimizers:
            _hold_parts(optimizer, part_of)
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
        wholes = {}
        for part in self.module.modules():
            parameters: dict[str, Any] = part._parameters
            for name, parameter in parameters.items():
                if isinstance(parameter, DTensor):
                    if parameter not in wholes:
                        wholes[parameter] = nn.Parameter(
                            whole(parameter.detach()), requires_grad=parameter.requires_grad
                        )
                    parameters[name] = wholes[parameter]
            _make_plain(part)


def _hold_parts(optimizer: Optimizer, part_of: Mapping[Any, nn.Parameter]) -> None:
    """Give an optimizer the parts of the parameters that it holds, and the parts of its states."""
    states = dict(optimizer.state)
    optimizer.state.clear()
    for group in optimizer.param_groups:
        for index, parameter in enumerate(group["params"]):
            if parameter not in part_of:
                raise ConfigurationError(
                    f"the {type(optimizer).__name__} holds a tensor of shape "
                    f"{list(parameter.shape)} that is no parameter of the module: FSDP can't "
                    "shard it",
                    do="make it an attribute of the module, as an nn.Parameter.",
                )
            part = group["params"][index] = part_of[parameter]
            if parameter in states:
                optimizer.state[part] = parts_like(states[parameter], part)


def whole(leaf: Any) -> Any:
    """Return a sharded tensor whole, anything else as it is; all ranks must call it."""
    if not isinstance(leaf, DTensor):
        return leaf
    kind = leaf.device_mesh.device_type
    moved: Any = leaf if leaf.device.type == kind else leaf.to(kind)
    return moved.full_tensor().to(leaf.device)


def part_like(value: Any, like: Any) -> Any:
    """Return this rank's part of a whole tensor, cut as ``like`` is; another shape as it is."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor):
        return value
    if value.shape != like.shape:
        return value
    mesh = like.device_mesh
    cut = distribute_tensor(value.to(mesh.device_type), mesh, like.placements, src_data_rank=None)
    return cut.to(like.device)


def parts_like(entry: Mapping[str, Any], like: Tensor) -> dict[str, Any]:
    """Return this rank's parts of the tensors in an optimizer's state of one parameter."""
    return {key: part_like(value, like) for key, value in entry.items()}


def _make_plain(part: nn.Module) -> None:
    """Take fully_shard off a module: its hooks, its class, its marks."""
    for name in _MARKS:
        vars(part).pop(name, None)
    for name in _HOOKS:
        hooks = vars(part)[name]
        for key, hook in list(hooks.items()):
            owner = getattr(getattr(hook, "hook", hook), "__module__", "")
            if owner.startswith("torch.distributed.fsdp"):
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
