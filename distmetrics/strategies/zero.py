"""A module inside a DeepSpeed engine: its weights, and its states as one process has them."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.strategies.split import SplitModule
from distmetrics.strategies.tensors import StateDict, parameters_of

# What DeepSpeed changes on modules: their parameters' dict, and hooks that gather and give back
# weights.
_CHANGED = (
    "_parameters",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class ZeroModule(SplitModule):
    """The user's module, and what it was before DeepSpeed changed it.

    Args:
        module: the user's, before the engine is made.
        optimizer: of its parameters, likewise.

    Attributes:
        parameters: the optimizer's, in the order of its state dict.
        groups: numbers of the parameters of each of its groups.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        self.module = module
        self.parameters = parameters_of(optimizer)
        self.groups = [group["params"] for group in optimizer.state_dict()["param_groups"]]
        self._plain = [
            (part, {name: vars(part)[name].copy() for name in _CHANGED})
            for part in module.modules()
        ]
        # What DeepSpeed has put in their place, while the module is whole.
        self._set_aside: list[dict[str, Any]] = []

    def _whole_inside(self, modifier: int | None = None) -> AbstractContextManager[None]:
        import deepspeed

        parameters = list(self.engine.module.parameters())
        gathered: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(
            parameters, modifier_rank=modifier, enabled=self.sharded
        )
        return gathered

    def gather(self) -> None:
        """Make the module a plain one, with copies of the whole weights."""
        wholes = {}
        with self._whole_inside():
            for parameter in self.module.parameters():
                wholes[parameter] = nn.Parameter(
                    parameter.detach().clone(), requires_grad=parameter.requires_grad
                )
        for part, before in self._plain:
            self._set_aside.append({name: vars(part)[name] for name in _CHANGED})
            vars(part).update({name: value.copy() for name, value in before.items()})
            parameters: dict[str, Any] = part._parameters
            for name, old in parameters.items():
                if old is not None:
                    parameters[name] = wholes[old]

    def give_back(self) -> None:
        """Put DeepSpeed's parameters and hooks in their places again."""
        for (part, _), changed in zip(self._plain, self._set_aside, strict=True):
            vars(part).update(changed)
        self._set_aside.clear()

    def share_gradients(self, enabled: bool) -> None:
        """Let the gradients of the next backward passes travel, or stay on each rank."""
        self.engine.set_gradient_accumulation_boundary(enabled)

    def load(self, module: nn.Module, weights: StateDict) -> None:
        """Put a whole state dict into the module, and into the engine's copies of its weights."""
        self.be_parts()
        with self._whole_inside(modifier=0), torch.no_grad():
            module.load_state_dict(dict(weights))
        for name, parameter in module.named_parameters():
            _put(parameter, weights[name].to(parameter.device))

    def clip(self, norm: float) -> None:
        """Let the engine clip the gradients' norm to this in its next step; 0 is no limit."""
        self.engine._config.gradient_clipping = norm
        if hasattr(self.engine.optimizer, "clip_grad"):
            self.engine.optimizer.clip_grad = norm

    def undo(self) -> None:
        """Make the module whole and plain for good, and end the engine; all ranks must call it."""
        self.be_whole()
        if not self.sharded:
            for part, before in self._plain:
                hooks = {name: value for name, value in before.items() if name != "_parameters"}
                vars(part).update(hooks)
        self.engine.destroy()


def whole_states(zero: ZeroModule, optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer's state dict as one process would have it; all ranks must call it."""
    from deepspeed.utils import safe_get_full_optimizer_state

    if zero.engine.optimizer is optimizer:  # stage 0
        plain: dict[str, Any] = optimizer.state_dict()
        return plain
    zero.be_parts()
    _link(zero)
    entry: dict[str, Any] = next(filter(None, optimizer.state.values()), {})
    states: dict[int, dict[str, Any]] = {}
    for index, parameter in enumerate(zero.parameters if entry else ()):
        states[index] = {}
        for key, value in entry.items():
            per_element = _is_per_element(value)
            own = safe_get_full_optimizer_state(parameter, key) if per_element else value
            states[index][key] = _copied(own)
    groups = [
        {**options, "params": indices}
        for indices, options in zip(zero.groups, optimizer.param_groups, strict=True)
    ]
    return {"state": states, "param_groups": groups}


def load_states(zero: ZeroModule, optimizer: Optimizer, state: StateDict) -> None:
    """Put such a state dict back; all ranks must call it."""
    if zero.engine.optimizer is optimizer:
        optimizer.load_state_dict(dict(state))
        return
    zero.be_parts()
    parameters = zero.parameters
    for index, entry in list(state["state"].items())[:1]:
        _make_states(zero, optimizer, entry, _shape(parameters[index]))
    for index, entry in state["state"].items():
        for key, value in entry.items():
            if _is_per_element(value) and value.shape == _shape(parameters[index]):
                _put(parameters[index], value.to(parameters[index].device), key)
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})


def _make_states(
    zero: ZeroModule,
    optimizer: Optimizer,
    like: Mapping[str, Any],
    shape: torch.Size,
) -> None:
    """Give the optimizer the states that its first step would make: numbers, and empty tensors."""
    engine = zero.engine.optimizer
    flats = (
        engine.fp32_partitioned_groups_flat
        if zero.sharded
        else engine.single_partition_of_fp32_groups
    )
    for flat in flats:
        for key, value in like.items():
            if _is_per_element(value) and value.shape == shape:
                optimizer.state[flat].setdefault(key, torch.zeros_like(flat))
            else:
                optimizer.state[flat][key] = _copied(value)
    _link(zero)


def _link(zero: ZeroModule) -> None:
    """Tell parameters where their states are.

    Below stage 3 DeepSpeed does so once, when just one group has any.
    """
    if not zero.sharded:
        zero.engine.optimizer._hp_optimizer_states_linked = False
        zero.engine.optimizer._lazy_init_hp_params_optimizer_state()


def _put(parameter: Any, value: Tensor, key: str | None = None) -> None:
    """Put this rank's part of a whole weight, or of its state ``key``, into its place."""
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

    if not hasattr(parameter, "ds_id"):
        if key is None:
            safe_set_full_fp32_param(parameter, value)
        else:
            safe_set_full_optimizer_state(parameter, value, key)
        return
    # DeepSpeed's own function for stage 3 expects sizes that the ranks divide.
    owner = parameter._z3_optimizer
    part, _ = owner._get_fp32_opt_state_partition(
        parameter, release_swap_buffers=False, optim_state_key=key
    )
    start = part.numel() * owner._get_param_partition_rank(parameter)
    mine = value.flatten()[start : start + part.numel()]
    part.data[: mine.numel()].copy_(mine)


def _is_per_element(value: Any) -> bool:
    """True if a state has an entry for each element of its parameter, and is not one number."""
    return isinstance(value, Tensor) and value.ndim > 0


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _shape(parameter: Any) -> torch.Size:
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape
