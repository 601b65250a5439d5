"""DeepSpeed's ZeRO: optimizer states, gradients and weights shared out over the ranks, stage by
stage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.arguments import Takes, check, whole
from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.strategies.base import TrainingStep
from distmetrics.strategies.devices import Devices
from distmetrics.strategies.launchers import ProcessStrategy, ScriptLaunch
from distmetrics.strategies.parallel import (
    StepModule,
    copy_from_rank_zero,
    same_on_all_ranks,
    whole_only,
)
from distmetrics.strategies.zero import ZeroModule, load_states, whole_states

T = TypeVar("T")


_TAKES = {
    "stage": Takes(lambda value: whole(value, 0) and value <= 3, "0, 1, 2 or 3"),
    "config": Takes(
        lambda value: isinstance(value, Mapping), "a dict of DeepSpeed's configuration"
    ).or_none(),
}


class DeepSpeedProcesses(ProcessStrategy):
    """One process a device; a DeepSpeed engine takes the steps, with torch's own optimizer inside.

    Stage 0 shares nothing out, 1 optimizer states, 2 also gradients, 3 also weights. At stage 3 an
    evaluation, and a checkpoint while it is written, hold the whole weights on every rank; and
    every rank needs as many training batches.

    Args:
        stage: 0, 1, 2 or 3.
        config: DeepSpeed's own configuration, on top of ours; a "zero_optimization" in it keeps our
            stage unless it names one.
    """

    whole_on_each_rank: ClassVar[bool] = False

    manual: ClassVar[bool] = False

    def __init__(self, *, stage: int = 2, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        check("DeepSpeed", locals(), _TAKES)
        self.stage = stage
        self.config = dict(config or {})
        self._zero: ZeroModule | None = None

    def configure(self, **flags: Any) -> None:
        """Take over the trainer's flags that every strategy has.

        Raises:
            ConfigurationError: a precision that this strategy has not.
        """
        super().configure(**flags)
        if self.precision.name not in ("32-true", "bf16-mixed"):
            raise ConfigurationError(
                f"strategy={self.name!r} runs precision=32 and 'bf16-mixed', got "
                f"{self.precision.name!r}"
            )

    def bind(self, devices: Devices, accelerator: str) -> None:
        """Take over the trainer's flags.

        Raises:
            MissingDependencyError: DeepSpeed is not installed.
        """
        _library()
        super().bind(devices, accelerator)

    def place(self, module: nn.Module) -> None:
        """Move the module to this rank's device, with rank 0's weights."""
        super().place(module)
        same_on_all_ranks(module)

    def setup(
        self, module: nn.Module, optimizers: Sequence[Optimizer]
    ) -> tuple[TrainingStep, list[Optimizer]]:
        """Make the engine around the training step.

        Raises:
            ConfigurationError: several optimizers, which an engine can't have.
        """
        if len(optimizers) != 1:
            raise ConfigurationError(
                f"strategy={self.name!r} takes one optimizer, and configure_optimizers returned "
                f"{len(optimizers)}",
                do="put the parameters into groups of one optimizer, or say strategy='fsdp'.",
            )
        self._start(module, StepModule(module), optimizers[0])
        return self._step, list(optimizers)

    def prepare(
        self, module: nn.Module, optimizers: Sequence[Optimizer]
    ) -> tuple[Callable[..., Any], list[Optimizer]]:
        """Make the engine around the module itself; one without optimizers stays as it is.

        Raises:
            ConfigurationError: several models to train, or several optimizers of one.
        """
        if not optimizers:
            return module, []
        if len(optimizers) > 1 or self._zero is not None:
            raise ConfigurationError(
                f"strategy={self.name!r} trains one model with one optimizer",
                do="say strategy='fsdp'.",
            )
        self._start(module, module, optimizers[0])

        def call(*args: Any) -> Any:
            self._made().be_parts()
            return self._made().engine(*args)

        return call, list(optimizers)

    def _start(self, module: nn.Module, entry: nn.Module, optimizer: Optimizer) -> None:
        os.environ.setdefault(
            "LOCAL_RANK", str(self.local_rank)
        )  # DeepSpeed asks for it, whoever launched us
        self._zero = ZeroModule(module, optimizer)
        self._zero.engine, *_ = _library().initialize(
            model=entry, optimizer=optimizer, config=self.settings(), dist_init_required=False
        )

    def settings(self) -> dict[str, Any]:
        """Return the configuration of the engine; batches are the trainer's matter, so its numbers
        of them are 1.
        """
        zero = {"stage": self.stage, **self.config.get("zero_optimization", {})}
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            **self.config,
            "zero_optimization": zero,
        }

    def _step(self, batch: Any, batch_idx: int) -> Any:
        zero = self._made()
        zero.be_parts()
        if batch is None and zero.sharded:
            raise ConfigurationError(
                "this rank has no batch for a training step, and DeepSpeed's stage 3 needs one "
                "on every rank",
                likely="loaders of different length, which the trainer did not deal out itself.",
                do="give every rank as many batches, or say DeepSpeed(stage=2).",
            )
        return zero.engine(batch, batch_idx)

    def _made(self) -> ZeroModule:
        assert self._zero is not None, "this comes after setup"
        return self._zero

    @contextmanager
    def accumulate(self, step: TrainingStep) -> Iterator[None]:
        """Add up gradients, as the engine does between its boundaries."""
        engine = self._made().engine
        engine.set_gradient_accumulation_boundary(False)
        try:
            yield
        finally:
            engine.set_gradient_accumulation_boundary(True)

    def backward(self, loss: Tensor) -> None:
        """Let the engine compute gradients."""
        self._made().engine.backward(loss)

    def clip(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        *,
        max_norm: float | None = None,
        clip_value: float | None = None,
        norm_type: float = 2.0,
    ) -> Tensor | None:
        """Let the engine clip the gradients' norm in its next step; the norm before is known only
        then.

        Raises:
            ConfigurationError: what the engine can't do.
        """
        if clip_value is not None or norm_type != 2.0:
            raise ConfigurationError(
                f"strategy={self.name!r} clips the norm of gradients, of order 2, and no values"
            )
        self._made().clip(0.0 if max_norm is None else max_norm)
        return None

    def step(
        self, module: nn.Module, optimizer: Optimizer, closure: Callable[[], Any] | None = None
    ) -> Any:
        """Let the engine clip, step and clear the gradients.

        Raises:
            ConfigurationError: a closure, which the engine can't call.
        """
        if closure is not None:
            raise ConfigurationError(
                f"strategy={self.name!r} steps without a closure", do="say strategy='ddp'."
            )
        zero = self._made()
        zero.engine.step()
        zero.clip(0.0)

    def align(self, module: nn.Module) -> None:
        """Give every rank rank 0's buffers, and at stage 3 whole parameters until training goes on."""
        copy_from_rank_zero(dict(module.named_buffers()), "buffers")
        if self._zero is not None:
            self._zero.be_whole()

    def evaluator(self, module: nn.Module, name: str) -> Callable[..., Any]:
        """Return the module's step, for which its parameters must be whole."""
        step = super().evaluator(module, name)
        return whole_only(step, self.name, lambda: self._zero is None or self._zero.is_whole)

    def weights(self, module: nn.Module) -> dict[str, Any]:
        """Return the whole state dict; called on every rank."""
        if self._zero is None:
            return super().weights(module)
        with self._zero.whole_for_now():
            return {name: value.detach().clone() for name, value in module.state_dict().items()}

    def load_weights(self, module: nn.Module, weights: Mapping[str, Any]) -> None:
        """Put a whole state dict into the module and into the engine's own copies; called on every
        rank.
        """
        self._made().load(module, weights)

    def optimizer_state(self, module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the whole state dict, as the optimizer would have it in one process; called on
        every rank.
        """
        return whole_states(self._made(), optimizer)

    def load_optimizer_state(
        self, module: nn.Module, optimizer: Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Put such a state dict back; called on every rank."""
        load_states(self._made(), optimizer, state)

    def release(self) -> None:
        """Make the user's module whole and plain again; called on every rank."""
        if self._zero is not None:
            self._zero.undo()
        self.forget()

    def forget(self) -> None:
        """Drop the engine of a launch that failed."""
        self._zero = None


class DeepSpeed(ScriptLaunch, DeepSpeedProcesses):
    """DeepSpeed with every rank a run of the script; see :class:`DeepSpeedProcesses` for the
    options.

    Raises:
        MissingDependencyError: it is not installed.
    """

    name: ClassVar[str] = "deepspeed"


def _library() -> Any:
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # it would ask, and warn
    try:
        import deepspeed
    except ImportError as error:
        raise MissingDependencyError.of("deepspeed", "deepspeed", "strategy='deepspeed'") from error
    return deepspeed
