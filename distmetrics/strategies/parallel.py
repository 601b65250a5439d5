"""What the strategies with the whole model on every rank share: DistributedDataParallel around the
training step.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from distmetrics.arguments import FLAG, check
from distmetrics.collectives.ops import broadcast
from distmetrics.errors import ConfigurationError
from distmetrics.strategies.base import Strategy, TrainingStep
from distmetrics.strategies.launchers import ProcessStrategy


class DataParallelStrategy(ProcessStrategy):
    """The whole model on every rank; gradients averaged by torch's DistributedDataParallel.

    Args:
        options: passed to ``DistributedDataParallel``: ``find_unused_parameters``,
            ``bucket_cap_mb`` and so
        on.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        if type(self).wrap is DataParallelStrategy.wrap:  # another's wrapper may take others
            _check_options(type(self).__name__, options)
        self.options = options

    def place(self, module: nn.Module) -> None:
        """Move the module to this rank's device and give it rank 0's weights: scripts may differ in
        their seeds.
        """
        super().place(module)
        same_on_all_ranks(module)

    def wrap(self, step: nn.Module) -> nn.Module:
        """Return ``step`` wrapped so that its backward averages the gradients; override it for a
        wrapper of your own.

        Args:
            step: its forward is the module's training step, its parameters are the module's.
        """
        return Averaged(step, self, **self.options)

    def setup(
        self, module: nn.Module, optimizers: Sequence[Optimizer]
    ) -> tuple[TrainingStep, list[Optimizer]]:
        """Run the training step inside :meth:`wrap`, DistributedDataParallel."""
        return self.wrap(StepModule(module)), list(optimizers)

    def prepare(
        self, module: nn.Module, optimizers: Sequence[Optimizer]
    ) -> tuple[Callable[..., Any], list[Optimizer]]:
        """Put the module inside :meth:`wrap`; DistributedDataParallel refuses one that has nothing
        to learn.
        """
        learns = any(parameter.requires_grad for parameter in module.parameters())
        return self.wrap(module) if learns else module, list(optimizers)

    def accumulate(self, step: TrainingStep) -> AbstractContextManager[Any]:
        """Let no gradient travel."""
        context: AbstractContextManager[Any] = step.no_sync()  # type: ignore[attr-defined]
        return context

    def align(self, module: nn.Module) -> None:
        """Give every rank rank 0's buffers: running statistics follow each rank's own data while it
        trains.
        """
        copy_from_rank_zero(dict(module.named_buffers()), "buffers")


class Averaged(DistributedDataParallel):
    """Torch's wrapper, whose advice on parameters that get no gradient is in terms of ours.

    Args:
        step: what is wrapped.
        strategy: the user's, which made it.
        options: of torch's wrapper.
    """

    def __init__(self, step: nn.Module, strategy: Strategy, **options: Any) -> None:
        super().__init__(step, **options)
        kind = type(strategy)
        self._advice = (
            f"strategy={kind.__name__}(find_unused_parameters=True), of {kind.__module__}, where "
            "steps use different "
            "parts of the model; else leave the part out of it, or freeze it by "
            "requires_grad_(False), before."
        )

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call what is wrapped.

        Raises:
            ConfigurationError: parameters had no gradient in the step before, and options don't
                allow for that.
        """
        try:
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if not self._knows(error):
                raise
            raise self._told(error, "the step before") from error

    def check_averaged(self) -> None:
        """Check, before an update, that the last backward pass has averaged all that it had to.

        Torch does so in its next forward alone, and first of all: after the update, and never where
        no step follows. This is the same call, of a microsecond where all is well.

        Raises:
            ConfigurationError: parameters had no gradient, and options don't allow for that.
        """
        try:
            self.reducer._rebuild_buckets()
        except RuntimeError as error:
            if not self._knows(error):
                raise
            raise self._told(error, "this step") from error

    def _knows(self, error: RuntimeError) -> bool:
        return _UNFINISHED in str(error) and not self.find_unused_parameters

    def _told(self, error: RuntimeError, when: str) -> ConfigurationError:
        return ConfigurationError(
            f"some parameters got no gradient in {when}, so that ranks could not average: "
            f"{', '.join(_without_gradient(self.module, str(error))) or 'torch does not say which'}",
            likely="a part of the model that the loss does not depend on, in every step or in "
            "some.",
            do=self._advice,
            rank=dist.get_rank(),
        )


_UNFINISHED = "Expected to have finished reduction in the prior iteration"


def _without_gradient(wrapped: nn.Module, text: str) -> list[str]:
    """Name the parameters that torch's text numbers, as they are called in the user's module."""
    inner: Any = wrapped
    prefix = ""
    while type(inner).__module__.startswith("distmetrics.") and isinstance(
        getattr(inner, "module", None), nn.Module
    ):
        inner, prefix = inner.module, f"{prefix}module."
    names = [name.removeprefix(prefix) for name, p in wrapped.named_parameters() if p.requires_grad]
    found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", text)
    return [] if found is None else [names[int(index)] for index in found[1].split()]


def whole_only(
    step: Callable[..., Any], name: str, is_whole: Callable[[], bool]
) -> Callable[..., Any]:
    """Return a module's step of an evaluation as one that refuses a model whose weights are in
    parts.

    Args:
        step: the module's own.
        name: of the strategy.
        is_whole: whether every rank has the whole weights now.
    """

    def run(*args: Any) -> Any:
        if not is_whole():
            raise ConfigurationError(
                f"strategy={name!r}: the model is called without gradients, and its weights are "
                "in parts",
                do="model.eval() on every rank before: it makes them whole.",
            )
        return step(*args)

    return run


def _check_options(who: str, options: Mapping[str, Any]) -> None:
    """Refuse what ``DistributedDataParallel`` would refuse on every rank, or take text for yes."""
    known = {
        name: parameter.default
        for name, parameter in inspect.signature(DistributedDataParallel).parameters.items()
        if name != "module"
    }
    for name in options.keys() - known.keys():
        raise ConfigurationError(
            f"{who} got {name}=..., which is no option of DistributedDataParallel: it has "
            f"{', '.join(known)}",
            do="drop it; devices, accelerator, precision and num_nodes are the trainer's own "
            "flags.",
        )
    takes = {name: FLAG for name, default in known.items() if isinstance(default, bool)}
    takes["broadcast_buffers"] = FLAG.or_none()
    check(who, options, {name: takes[name] for name in options if name in takes})


class StepModule(nn.Module):
    """The module with its training step as ``forward``, which is the one call that wrappers hook.

    Args:
        module: the user's.
        step: what to call for a batch; default the module's ``training_step``.
    """

    def __init__(self, module: nn.Module, step: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.module = module
        self.step = step

    def forward(self, batch: Any, batch_idx: int) -> Any:
        """Take a training step; without a batch, one that contributes nothing."""
        if batch is None:
            return sum((p * 0).sum() for p in self.module.parameters() if p.requires_grad)
        step = self.module.training_step if self.step is None else self.step
        output = step(batch, batch_idx)  # type: ignore[operator]
        if output is None:
            raise ConfigurationError(
                "training_step returned None: a step that one rank skips leaves the others waiting",
                do="return a loss on every rank; `loss * 0` contributes nothing.",
            )
        return output


def same_on_all_ranks(module: nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers."""
    copy_from_rank_zero(
        {**dict(module.named_parameters()), **dict(module.named_buffers())}, "weights"
    )


def copy_from_rank_zero(tensors: dict[str, Tensor], what: str) -> None:
    """Copy rank 0's tensors into those of every rank, in place."""
    if not tensors:
        return
    with torch.no_grad():
        for name, value in broadcast(tensors, name=what).items():
            tensors[name].copy_(value)
