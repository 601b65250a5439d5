"""How far a fit is, what it works with on one rank, and how its optimizers step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from distmetrics.collectives.ops import all_reduce
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import ConfigurationError
from distmetrics.run.logbook import LogBook
from distmetrics.run.schedules import Schedule
from distmetrics.strategies.base import Strategy, TrainingStep
from distmetrics.strategies.tensors import parameters_of
from distmetrics.strategies.weighted_gradients import WeightedGradients, WeightedSums, check_apart

EpochRng = tuple[dict[str, Any], list[Tensor]]


@dataclass
class LoopProgress:
    """What a checkpoint holds of a fit's position.

    Attributes:
        epoch: epochs that are over; within one its number, from 0.
        global_step: optimizer steps taken.
        batches: steps of the epoch that are over, on each rank.
        pending: steps since the last update.
        validated_at: ``batches`` at the epoch's last validation, None before the first.
        epoch_is_over: True if all of the epoch is, its values included.
    """

    epoch: int = 0
    global_step: int = 0
    batches: int = 0
    pending: int = 0
    validated_at: int | None = None
    epoch_is_over: bool = False

    def begin_epoch(self, number: int) -> None:
        """Go to the beginning of an epoch, after as many steps."""
        self.load({"epoch": number, "global_step": self.global_step})

    def load(self, state: Mapping[str, Any]) -> None:
        """Go to another position; what ``state`` does not name is as at the beginning."""
        vars(self).update(asdict(LoopProgress(**state)))


@dataclass
class FitState:
    """What a fit works with on this rank.

    Attributes:
        call: calls a hook of the module and of the callbacks.
        step: what is called for a training step.
        outputs: what the epoch's steps returned; kept for a module with ``training_epoch_end``.
        log: the epoch's, while there is one.
        epoch_rng: the states of random generators when the epoch's loader was opened: this
            process's, the loader's.
        resumed: what to take up when the loader is open; from a checkpoint.
    """

    module: nn.Module
    strategy: Strategy
    progress: LoopProgress
    call: Callable[..., None]
    step: TrainingStep
    optimizers: list[Optimizer]
    schedules: Sequence[Schedule]
    train_loader: Any
    val_loaders: Sequence[Any]
    outputs: list[Any] = field(default_factory=list)
    log: LogBook | None = None
    epoch_rng: EpochRng | None = None
    resumed: Mapping[str, Any] | None = None
    gradients: WeightedSums = field(init=False)
    weighted: WeightedGradients = field(init=False)
    _backwards: int = 0
    _stepped_at: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gradients = WeightedSums(self.module, self.optimizers)
        self.weighted = WeightedGradients(self.strategy)

    def update(self, optimizer: Optimizer, *, clip: float | None = None) -> None:
        """Let an optimizer step with the gradients that are there, and clear them."""
        self.call("on_before_optimizer_step", optimizer)
        self.strategy.update(self.module, optimizer, clip=clip)
        self.gradients.note_cleared(optimizer)
        self.progress.global_step += 1

    def backward(self, loss: Tensor, weight: Any, *, is_last: bool) -> None:
        """Compute the gradients of a step; with the last of an update they are a mean."""
        self.call("on_before_backward", loss)
        self.weighted.backward(loss, weight, self.gradients, is_last=is_last)
        self.call("on_after_backward")

    def manual_backward(self, loss: Tensor, weight: Any) -> None:
        """Compute the gradients of a loss in a step that does so itself."""
        if weight is not None:
            check_apart(self.gradients, self.strategy.comm().rank)
        self.call("on_before_backward", loss)
        self.weighted.backward(loss, weight, self.gradients, is_last=False)
        self._backwards += 1
        if is_wrapped(self.step):
            share_gradients(self.module, self.strategy.comm())
        self.weighted.finish(self.gradients)
        self.call("on_after_backward")

    def manual_update(self, optimizer: Optimizer) -> None:
        """Let an optimizer step, with the gradients that ``manual_backward`` has made.

        Raises:
            ConfigurationError: it has made none since the optimizer's last step.
        """
        before = self._stepped_at.get(id(optimizer), 0)
        self._stepped_at[id(optimizer)] = self._backwards
        has_gradients = any(p.grad is not None for p in parameters_of(optimizer))
        comm = self.strategy.comm()
        if comm.world_size > 1 and has_gradients and before == self._backwards:
            raise ConfigurationError(
                f"{type(self.module).__name__} steps its {type(optimizer).__name__} with "
                "gradients that manual_backward has not made: they are this rank's alone, and the "
                "ranks' weights would part",
                likely="loss.backward() in training_step.",
                do="self.manual_backward(loss).",
                rank=comm.rank,
            )
        self.update(optimizer)


def is_wrapped(step: TrainingStep) -> TypeGuard[DistributedDataParallel]:
    """True if torch's wrapper averages gradients; it can't see a backward in its own forward."""
    return isinstance(step, DistributedDataParallel)


def share_gradients(module: nn.Module, comm: Communicator) -> None:
    """Make every gradient the mean over all ranks; one that only some ranks have counts as zero."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if comm.world_size == 1 or not trained:
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    has_gradient = torch.tensor([float(p.grad is not None) for p in trained], device="cpu")
    counts, sums = all_reduce((has_gradient, gradients), comm=comm, name="gradients")
    for parameter, count, total in zip(trained, counts.tolist(), sums, strict=True):
        if count:
            parameter.grad = total / comm.world_size
