"""A module inside a DeepSpeed engine: its weights whole or in parts, its optimizer states as one
process has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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


class ZeroModule:
    """The user's module, and what it was before DeepSpeed changed it.

    Args:
        module: the user's, before the engine is made.
        optimizer: of its parameters, likewise.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        self.module = module
        self.engine: Any = None
        self.groups: list[list[Tensor]] = [
            list(group["params"]) for group in optimizer.param_groups
        ]
        self._plain = [
            (part, {name: vars(part)[name].copy() for name in _CHANGED})
            for part in module.modules()
        ]
        self._changed: list[tuple[nn.Module, dict[str, Any]]] | None = None

    @property
    def parameters(self) -> list[Tensor]:
        """The optimizer's parameters, in the order of its state dict."""
        return [parameter for group in self.groups for parameter in group]

    @property
    def sharded(self) -> bool:
        """Whether weights are shared out."""
        return any(hasattr(parameter, "ds_id") for parameter in self.parameters)

    @property
    def is_whole(self) -> bool:
        """Whether every parameter is whole on this rank."""
        return self._changed is not None or not self.sharded

    @contextmanager
    def _gathered(self, modifier: int | None = None) -> Iterator[None]:
        import deepspeed

        if not self.sharded:
            yield
            return
        parameters = list(self.engine.module.parameters())
        with deepspeed.zero.GatheredParameters(parameters, modifier_rank=modifier):
            yield

    def be_whole(self) -> None:
        """Make the module a plain one with whole weights, until :meth:`be_parts`; all ranks must
        call it.
        """
        if self._changed is not None or not self.sharded:
            return
        wholes: dict[int, nn.Parameter] = {}
        with self._gathered():
            for part, _ in self._plain:
                for parameter in part._parameters.values():
                    if parameter is not None and id(parameter) not in wholes:
                        copied = parameter.detach().clone()
                        wholes[id(parameter)] = nn.Parameter(
                            copied, requires_grad=parameter.requires_grad
                        )
        self._changed = [
            (part, {name: vars(part)[name] for name in _CHANGED}) for part, _ in self._plain
        ]
        for part, before in self._plain:
            vars(part).update({name: value.copy() for name, value in before.items()})
            part._parameters = {
                name: None if p is None else wholes[id(p)] for name, p in part._parameters.items()
            }

    def be_parts(self) -> None:
        """Give back what other ranks own; nothing is sent."""
        if self._changed is not None:
            for part, changed in self._changed:
                vars(part).update(changed)
            self._changed = None

    @contextmanager
    def whole_for_now(self) -> Iterator[None]:
        """Be whole inside the block."""
        were_parts = self._changed is None
        self.be_whole()
        try:
            yield
        finally:
            if were_parts:
                self.be_parts()

    def load(self, module: nn.Module, weights: Mapping[str, Any]) -> None:
        """Put a whole state dict into the module, and into the engine's copies of its weights."""
        from deepspeed.utils import safe_set_full_fp32_param

        self.be_parts()
        with self._gathered(modifier=0), torch.no_grad():
            module.load_state_dict(dict(weights))
        for name, parameter in module.named_parameters():
            value = weights[name].to(parameter.device)
            if hasattr(parameter, "ds_id"):
                _put_part(parameter, value, None)
            else:
                safe_set_full_fp32_param(parameter, value)

    def clip(self, norm: float) -> None:
        """Let the engine clip the gradients' norm to this in its next step; 0 is no limit."""
        self.engine._config.gradient_clipping = norm
        if hasattr(self.engine.optimizer, "clip_grad"):
            self.engine.optimizer.clip_grad = norm

    def undo(self) -> None:
        """Make the module whole and plain for good, and end the engine; all ranks must call it."""
        self.be_whole()
        if self._changed is None:
            for part, before in self._plain:
                vars(part).update(
                    {name: value for name, value in before.items() if name != "_parameters"}
                )
        self._changed = None
        self.engine.destroy()


def whole_states(zero: ZeroModule, optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer's state dict as one process would have it; all ranks must call it."""
    from deepspeed.utils import safe_get_full_optimizer_state

    if zero.engine.optimizer is optimizer:  # stage 0
        plain: dict[str, Any] = optimizer.state_dict()
        return plain
    zero.be_parts()
    _link(zero)
    tensors, scalars = _kinds(optimizer)
    state = {
        index: {
            **{
                key: safe_get_full_optimizer_state(parameter, key).detach().clone()
                for key in tensors
            },
            **scalars,
        }
        for index, parameter in enumerate(zero.parameters)
    }
    return {
        "state": state if tensors or scalars else {},
        "param_groups": _groups(zero.groups, optimizer),
    }


def load_states(zero: ZeroModule, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Put such a state dict back; all ranks must call it."""
    if zero.engine.optimizer is optimizer:
        optimizer.load_state_dict(dict(state))
        return
    zero.be_parts()
    parameters = zero.parameters
    first = next(iter(state["state"].items()), None)
    if first is not None:
        _make_states(zero, optimizer, first[1], _shape(parameters[first[0]]))
    for index, entry in state["state"].items():
        for key, value in entry.items():
            if _has_shape(value, _shape(parameters[index])):
                _put(parameters[index], value.to(parameters[index].device), key)
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})


def _make_states(
    zero: ZeroModule, optimizer: Optimizer, like: Mapping[str, Any], shape: torch.Size
) -> None:
    """Give the optimizer empty states, which it would make in its first step, and the numbers in
    them their values.
    """
    engine = zero.engine.optimizer
    flats = (
        engine.fp32_partitioned_groups_flat
        if zero.sharded
        else engine.single_partition_of_fp32_groups
    )
    for flat in flats:
        for key, value in like.items():
            if _has_shape(value, shape):
                optimizer.state[flat].setdefault(key, torch.zeros_like(flat))
            else:
                optimizer.state[flat][key] = value.clone() if isinstance(value, Tensor) else value
    _link(zero)


def _link(zero: ZeroModule) -> None:
    """Tell parameters where their states are: below stage 3 DeepSpeed does so once, when just one
    group has any.
    """
    if not zero.sharded:
        zero.engine.optimizer._hp_optimizer_states_linked = False
        zero.engine.optimizer._lazy_init_hp_params_optimizer_state()


def _put(parameter: Any, value: Tensor, key: str) -> None:
    """Put this rank's part of a whole state into its place."""
    from deepspeed.utils import safe_set_full_optimizer_state

    if not hasattr(parameter, "ds_id"):
        safe_set_full_optimizer_state(parameter, value, key)
        return
    _put_part(parameter, value, key)


def _put_part(parameter: Any, value: Tensor, key: str | None) -> None:
    """Put a rank's part at stage 3, whose own function for it expects sizes that the ranks divide."""
    owner = parameter._z3_optimizer
    part, _ = owner._get_fp32_opt_state_partition(
        parameter, release_swap_buffers=False, optim_state_key=key
    )
    start = part.numel() * owner._get_param_partition_rank(parameter)
    mine = value.flatten()[start : start + part.numel()]
    part.data[: mine.numel()].copy_(mine)


def _has_shape(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == shape


def _shape(parameter: Any) -> torch.Size:
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def _kinds(optimizer: Optimizer) -> tuple[list[str], dict[str, Any]]:
    """Return which states have an entry for each element, and the values of those that are one
    number.
    """
    entries = [entry for entry in optimizer.state.values() if entry]
    if not entries:
        return [], {}
    tensors = [key for key, value in entries[0].items() if isinstance(value, Tensor) and value.ndim]
    return tensors, {
        key: value.clone() if isinstance(value, Tensor) else value
        for key, value in entries[0].items()
        if key not in tensors
    }


def _groups(groups: Sequence[Sequence[Tensor]], optimizer: Optimizer) -> list[dict[str, Any]]:
    made, start = [], 0
    for members, group in zip(groups, optimizer.param_groups, strict=True):
        options = {key: value for key, value in group.items() if key != "params"}
        made.append({**options, "params": list(range(start, start + len(members)))})
        start += len(members)
    return made
