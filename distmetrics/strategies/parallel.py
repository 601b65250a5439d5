"""What strategies with the whole model on every rank share: DistributedDataParallel of a step."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from distmetrics.arguments import FLAG, check
from distmetrics.errors import ConfigurationError
from distmetrics.strategies.base import Entry, Strategy, TrainingStep
from distmetrics.strategies.launchers import ProcessStrategy


class DataParallelStrategy(ProcessStrategy):
    """The whole model on every rank; gradients averaged by torch's DistributedDataParallel.

    Args:
        options: passed to ``DistributedDataParallel``: ``find_unused_parameters``,
            ``bucket_cap_mb`` and so on.
    """

    def __init__(self, **options: Any) -> None:
        if type(self).wrap is DataParallelStrategy.wrap:  # another's wrapper may take others
            _check_options(type(self).__name__, options)
        self.options = options

    def wrap(self, step: nn.Module) -> nn.Module:
        """Return ``step`` wrapped so that its backward averages the gradients; yours to override.

        Args:
            step: its forward is the module's training step, its parameters are the module's.
        """
        return Averaged(step, self, **self.options)

    def training_call(self, entry: Entry, optimizers: Sequence[Optimizer]) -> TrainingStep:
        """Wrap the call by :meth:`wrap`, unless the model has nothing to learn."""
        learns = any(parameter.requires_grad for parameter in entry.parameters())
        return self.wrap(self.inner(entry)) if learns else entry

    def inner(self, entry: Entry) -> nn.Module:
        """Return what is wrapped."""
        return entry

    def accumulate(self, step: TrainingStep) -> AbstractContextManager[Any]:
        """Let no gradient travel."""
        context: AbstractContextManager[Any] = step.no_sync()  # type: ignore[attr-defined]
        return context


class Averaged(DistributedDataParallel):
    """Torch's wrapper, whose advice on parameters without a gradient is in terms of strategies.

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
            "steps use different parts of the model; else leave the part out of it, or freeze it "
            "by requires_grad_(False), before."
        )

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call what is wrapped.

        Raises:
            ConfigurationError: parameters had no gradient in the step before, and options don't
                allow for that.
        """
        with self._own_advice("the step before"):
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]

    def check_averaged(self) -> None:
        """Check, before an update, that the last backward pass has averaged all that it had to.

        Torch does so in its next forward alone, and first of all: after the update, and never where
        no step follows. This is the same call, of a microsecond where all is well.

        Raises:
            ConfigurationError: parameters had no gradient, and options don't allow for that.
        """
        with self._own_advice("this step"):
            self.reducer._rebuild_buckets()

    @contextmanager
    def _own_advice(self, when: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if _UNFINISHED not in str(error) or self.find_unused_parameters:
                raise
            names = ", ".join(_without_gradient(self.module, str(error)))
            raise ConfigurationError(
                f"some parameters got no gradient in {when}, so that ranks could not average: "
                f"{names or 'torch does not say which'}",
                likely="a part of the model that the loss does not depend on, in every step or in "
                "some.",
                do=self._advice,
                rank=dist.get_rank(),
            ) from error


_UNFINISHED = "Expected to have finished reduction in the prior iteration"


def _without_gradient(wrapped: nn.Module, text: str) -> list[str]:
    """Name the parameters that torch's text numbers, as they are called in the user's module."""
    inner, prefix = wrapped, ""
    while type(inner).__module__.startswith("distmetrics.") and "module" in inner._modules:
        inner, prefix = inner.get_submodule("module"), f"{prefix}module."
    names = [name.removeprefix(prefix) for name, p in wrapped.named_parameters() if p.requires_grad]
    numbers = re.search(r"did not receive grad for rank \d+: ([\d ]+)", text)
    if numbers is None:
        return []
    return [names[int(index)] for index in numbers[1].split()]


def _check_options(who: str, options: Mapping[str, Any]) -> None:
    """Refuse what ``DistributedDataParallel`` would refuse on every rank, or take text for yes."""
    parameters = inspect.signature(DistributedDataParallel).parameters
    known = {name: each.default for name, each in parameters.items() if name != "module"}
    for name in options.keys() - known.keys():
        raise ConfigurationError(
            f"{who} got {name}=..., which is no option of DistributedDataParallel: it has "
            f"{', '.join(known)}",
            do="drop it; devices, accelerator, precision and num_nodes are the trainer's own "
            "flags.",
        )
    takes = {name: FLAG for name, default in known.items() if isinstance(default, bool)}
    takes["broadcast_buffers"] = FLAG.or_none()
    check(who, {**known, **options}, takes)
