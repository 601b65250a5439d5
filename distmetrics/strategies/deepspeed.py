"""DeepSpeed's ZeRO: optimizer states, gradients and weights shared out over the ranks by stages."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.arguments import Takes, check, whole
from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.strategies.base import Closure, Entry, TrainingStep
from distmetrics.strategies.launchers import Script
from distmetrics.strategies.split import SplitModule, SplitStrategy, replace_parameters
from distmetrics.strategies.tensors import StateDict, map_tensors, parameters_of

_TAKES = {
    "stage": Takes(lambda value: whole(value, 0) and value <= 3, "0, 1, 2 or 3"),
    "config": Takes(
        lambda value: isinstance(value, Mapping), "a dict of DeepSpeed's configuration"
    ).or_none(),
}
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


class DeepSpeed(SplitStrategy):
    """A DeepSpeed engine takes the steps; every rank is a run of the script.

    The optimizer inside is torch's own. Stage 0 shards nothing, 1 optimizer states, 2 also
    gradients, 3 also weights. At stage 3 every rank needs as many training batches.

    Args:
        stage: 0, 1, 2 or 3.
        config: DeepSpeed's configuration, which overrides the strategy's. Its "zero_optimization"
            keeps ``stage`` unless it names one.

    Raises:
        ConfigurationError: an argument is of another kind. From the trainer or the runner: a
            precision other than 32 and "bf16-mixed". In a fit: several models or optimizers.
        MissingDependencyError: DeepSpeed is not installed; raised by the trainer or the runner.

    >>> strategy = DeepSpeed(stage=3, config={"zero_optimization": {"overlap_comm": True}})
    >>> strategy.stage  # Trainer(strategy=strategy)
    3
    >>> DeepSpeed(stage=4)
    Traceback (most recent call last):
    distmetrics.errors.ConfigurationError: DeepSpeed: stage must be 0, 1, 2 or 3, got 4
    """

    name = "deepspeed"
    launcher = Script()
    weighs_gradients = False

    def __init__(self, *, stage: int = 2, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        check("DeepSpeed", locals(), _TAKES)
        self.stage = stage
        self.config = dict(config or {})

    def check(self) -> None:
        """Check the trainer's flags.

        Raises:
            ConfigurationError: a precision that this strategy has not.
            MissingDependencyError: DeepSpeed is not installed.
        """
        super().check()
        if self.precision.name not in ("32-true", "bf16-mixed"):
            raise ConfigurationError(
                f"strategy={self.name!r} runs precision=32 and 'bf16-mixed', got "
                f"{self.precision.name!r}"
            )
        _library()

    def training_call(self, entry: Entry, optimizers: Sequence[Optimizer]) -> TrainingStep:
        """Make the engine around the module; one without optimizers stays as it is."""
        if not optimizers:
            return entry
        if len(optimizers) != 1 or self.modules:
            raise ConfigurationError(
                f"strategy={self.name!r} trains one model with one optimizer",
                do="put the parameters into groups of one optimizer, or say strategy='fsdp'.",
            )
        # DeepSpeed asks for it, whoever has launched us.
        os.environ.setdefault("LOCAL_RANK", str(self.local_rank))
        # Numbers of batches are 1: they are the trainer's.
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            **self.config,
            "zero_optimization": {
                "stage": self.stage,
                **self.config.get("zero_optimization", {}),
            },
        }
        zero = _ZeroModule(entry, optimizers[0])
        zero.engine, *_ = _library().initialize(
            model=entry,
            optimizer=optimizers[0],
            config=config,
            dist_init_required=False,
        )
        zero.sharded = any(hasattr(parameter, "ds_id") for parameter in zero.parameters)
        if zero.sharded:
            zero.without_batch = "DeepSpeed(stage=2)"
        self.modules.append(zero)
        return zero

    def backward(self, loss: Tensor) -> None:
        """Let the engine compute gradients."""
        self.modules[0].engine.backward(loss)

    def clip(self, module: nn.Module, optimizer: Optimizer, **limits: Any) -> Tensor | None:
        """Let the engine clip the norm in its next step; the norm before is known only then."""
        if limits.get("clip_value") is not None or limits.get("norm_type", 2.0) != 2.0:
            raise ConfigurationError(
                f"strategy={self.name!r} clips the norm of gradients, of order 2, and no values"
            )
        self.modules[0].clip(limits.get("max_norm") or 0.0)
        return None

    def step(self, module: nn.Module, optimizer: Optimizer, closure: Closure = None) -> Any:
        """Let the engine clip, step and clear the gradients."""
        if closure is not None:
            raise ConfigurationError(
                f"strategy={self.name!r} steps without a closure", do="say strategy='ddp'."
            )
        self.modules[0].engine.step()
        self.modules[0].clip(0.0)

    def weights(self, module: nn.Module) -> dict[str, Any]:
        """Return the whole state dict; called on every rank."""
        were_parts = [zero for zero in self.modules if not zero.is_whole]
        for zero in were_parts:
            zero.be_whole()
        weights: dict[str, Any] = _copied(dict(module.state_dict()))
        for zero in were_parts:
            zero.be_parts()
        return weights

    def load_weights(self, module: nn.Module, weights: StateDict) -> None:
        """Put a whole state dict into the module and into the engine's own copies."""
        if not self.modules:
            super().load_weights(module, weights)
            return
        zero = self.modules[0]
        zero.be_parts()
        with zero.whole_inside(modifier=0), torch.no_grad():
            module.load_state_dict(dict(weights))
        for name, parameter in module.named_parameters():
            _put(parameter, weights[name].to(parameter.device))

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the whole state dict, as the optimizer would have it in one process."""
        zero = self.modules[0]
        if zero.engine.optimizer is optimizer:  # stage 0
            return super().optimizer_state(module, optimizer)
        from deepspeed.utils import safe_get_full_optimizer_state

        zero.be_parts()
        _link(zero)
        entry: dict[str, Any] = next(filter(None, optimizer.state.values()), {})
        states: dict[int, dict[str, Any]] = {}
        for index, parameter in enumerate(zero.parameters if entry else ()):
            states[index] = {}
            for key, value in entry.items():
                if _is_per_element(value):
                    value = safe_get_full_optimizer_state(parameter, key)
                states[index][key] = _copied(value)
        groups = [
            {**options, "params": indices}
            for indices, options in zip(zero.groups, optimizer.param_groups, strict=True)
        ]
        return {"state": states, "param_groups": groups}

    def load_optimizer_state(
        self, module: nn.Module, optimizer: Optimizer, state: StateDict
    ) -> None:
        """Put such a state dict back; called on every rank."""
        zero = self.modules[0]
        if zero.engine.optimizer is optimizer:
            super().load_optimizer_state(module, optimizer, state)
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


class _ZeroModule(SplitModule):
    """The user's module inside an engine, and what it was before DeepSpeed changed it.

    Attributes:
        parameters: the optimizer's, in the order of its state dict.
        groups: numbers of the parameters of each of its groups.
    """

    def __init__(self, entry: Entry, optimizer: Optimizer) -> None:
        self.module = entry.module
        self.parameters = parameters_of(optimizer)
        self.groups = [group["params"] for group in optimizer.state_dict()["param_groups"]]
        self._plain = [
            (part, {name: vars(part)[name].copy() for name in _CHANGED})
            for part in entry.modules()  # an evaluation of a user's own loop calls it too
        ]
        # What DeepSpeed has put in their place, while the module is whole.
        self._set_aside: list[dict[str, Any]] = []

    def whole_inside(self, modifier: int | None = None) -> AbstractContextManager[None]:
        """Return a block in which the engine's parameters are whole; the modifier's are kept."""
        import deepspeed

        parameters = list(self.engine.module.parameters())
        gathered: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(
            parameters, modifier_rank=modifier, enabled=self.sharded
        )
        return gathered

    def gather(self) -> None:
        """Make the module a plain one, with copies of the whole weights."""
        wholes: dict[Any, nn.Parameter] = {}
        with self.whole_inside():
            for parameter in self.module.parameters():
                copied = parameter.detach().clone()
                wholes[parameter] = nn.Parameter(copied, parameter.requires_grad)
        for part, before in self._plain:
            self._set_aside.append({name: vars(part)[name] for name in _CHANGED})
            vars(part).update({name: value.copy() for name, value in before.items()})
        replace_parameters(self.module, wholes)

    def give_back(self) -> None:
        """Put DeepSpeed's parameters and hooks in their places again."""
        for (part, _), changed in zip(self._plain, self._set_aside, strict=True):
            vars(part).update(changed)
        self._set_aside.clear()

    def share_gradients(self, enabled: bool) -> None:
        """Let the gradients of the next backward passes travel, or stay on each rank."""
        self.engine.set_gradient_accumulation_boundary(enabled)

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


def _make_states(
    zero: _ZeroModule, optimizer: Optimizer, like: Mapping[str, Any], shape: torch.Size
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


def _link(zero: _ZeroModule) -> None:
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


def _copied(tree: Any) -> Any:
    return map_tensors(lambda tensor: tensor.detach().clone(), tree)


def _shape(parameter: Any) -> torch.Size:
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def _library() -> Any:
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # it would ask, and warn
    try:
        import deepspeed
    except ImportError as error:
        raise MissingDependencyError.of("deepspeed", "strategy='deepspeed'") from error
    return deepspeed
