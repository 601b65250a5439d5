"""DeepSpeed's ZeRO: optimizer states, gradients and weights shared out over the ranks by stages."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.arguments import Takes, check, whole
from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.strategies.base import Closure, Entry, TrainingStep
from distmetrics.strategies.launchers import Script
from distmetrics.strategies.split import SplitStrategy
from distmetrics.strategies.tensors import StateDict, map_tensors
from distmetrics.strategies.zero import ZeroModule, load_states, whole_states

_TAKES = {
    "stage": Takes(lambda value: whole(value, 0) and value <= 3, "0, 1, 2 or 3"),
    "config": Takes(
        lambda value: isinstance(value, Mapping), "a dict of DeepSpeed's configuration"
    ).or_none(),
}


class DeepSpeed(SplitStrategy):
    """A DeepSpeed engine takes the steps; every rank is a run of the script.

    The optimizer inside is torch's own.
    Stage 0 shares nothing out, 1 optimizer states, 2 also gradients, 3 also weights. At stage 3
    every rank needs as many training batches.

    Args:
        stage: 0, 1, 2 or 3.
        config: DeepSpeed's own configuration, on top of ours; a "zero_optimization" in it keeps our
            stage unless it names one.
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
        """Make the engine around the module; one without optimizers stays as it is.

        Raises:
            ConfigurationError: several models to train, or several optimizers of one.
        """
        if not optimizers:
            return entry
        if len(optimizers) != 1 or self.modules:
            raise ConfigurationError(
                f"strategy={self.name!r} trains one model with one optimizer",
                do="put the parameters into groups of one optimizer, or say strategy='fsdp'.",
            )
        # DeepSpeed asks for it, whoever has launched us.
        os.environ.setdefault("LOCAL_RANK", str(self.local_rank))
        zero = ZeroModule(entry.module, optimizers[0])
        zero.engine, *_ = _library().initialize(
            model=entry,
            optimizer=optimizers[0],
            config=self.settings(),
            dist_init_required=False,
        )
        zero.sharded = any(hasattr(parameter, "ds_id") for parameter in zero.parameters)
        if zero.sharded:
            zero.without_batch = "DeepSpeed's stage 3", "DeepSpeed(stage=2)"
        self.modules.append(zero)
        return zero

    def settings(self) -> dict[str, Any]:
        """Return the engine's configuration; numbers of batches are 1: they are the trainer's."""
        zero = {"stage": self.stage, **self.config.get("zero_optimization", {})}
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            **self.config,
            "zero_optimization": zero,
        }

    @property
    def zero(self) -> ZeroModule:
        """The module inside the engine, after :meth:`training_call`."""
        (zero,) = self.modules
        assert isinstance(zero, ZeroModule)
        return zero

    def backward(self, loss: Tensor) -> None:
        """Let the engine compute gradients."""
        self.zero.engine.backward(loss)

    def clip(self, module: nn.Module, optimizer: Optimizer, **limits: Any) -> Tensor | None:
        """Let the engine clip the norm in its next step; the norm before is known only then.

        Raises:
            ConfigurationError: what the engine can't do.
        """
        if limits.get("clip_value") is not None or limits.get("norm_type", 2.0) != 2.0:
            raise ConfigurationError(
                f"strategy={self.name!r} clips the norm of gradients, of order 2, and no values"
            )
        self.zero.clip(limits.get("max_norm") or 0.0)
        return None

    def step(self, module: nn.Module, optimizer: Optimizer, closure: Closure = None) -> Any:
        """Let the engine clip, step and clear the gradients.

        Raises:
            ConfigurationError: a closure, which the engine can't call.
        """
        if closure is not None:
            raise ConfigurationError(
                f"strategy={self.name!r} steps without a closure", do="say strategy='ddp'."
            )
        self.zero.engine.step()
        self.zero.clip(0.0)

    def weights(self, module: nn.Module) -> dict[str, Any]:
        """Return the whole state dict; called on every rank."""
        if not self.modules:
            return super().weights(module)
        zero = self.zero
        were_parts = not zero.is_whole
        zero.be_whole()
        weights = map_tensors(lambda value: value.detach().clone(), dict(module.state_dict()))
        if were_parts:
            zero.be_parts()
        return weights

    def load_weights(self, module: nn.Module, weights: StateDict) -> None:
        """Put a whole state dict into the module and into the engine's own copies."""
        if not self.modules:
            super().load_weights(module, weights)
        else:
            self.zero.load(module, weights)

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the whole state dict, as the optimizer would have it in one process."""
        return whole_states(self.zero, optimizer)

    def load_optimizer_state(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        state: StateDict,
    ) -> None:
        """Put such a state dict back; called on every rank."""
        load_states(self.zero, optimizer, state)


def _library() -> Any:
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # it would ask, and warn
    try:
        import deepspeed
    except ImportError as error:
        raise MissingDependencyError.of("deepspeed", "strategy='deepspeed'") from error
    return deepspeed
