"""What the module, the callbacks, the loggers and the loops see of the trainer that runs them."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from distmetrics.collectives.ops import all_gather_object
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import ConfigurationError
from distmetrics.log.writers import Logger
from distmetrics.run.config import TrainerConfig
from distmetrics.run.logbook import LogBook, Logged, Stage
from distmetrics.run.runner import Runner
from distmetrics.run.values import LoggedValues, as_number, check_name
from distmetrics.strategies.base import Strategy

_FLAGS = {field.name for field in fields(TrainerConfig)}


def gathered(
    trainer: "RunContext", value: Any, name: str, *, comm: Communicator | None = None
) -> list[Any]:
    """Return every rank's value, in rank order; the trainer's flag says what it may be."""
    allow_pickle = trainer.config.allow_pickle
    comm = comm or trainer.strategy.comm()
    return all_gather_object(value, allow_pickle=allow_pickle, comm=comm, name=name)


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


class RunContext:
    """A trainer as hooks see it while it runs; :class:`~distmetrics.train.Trainer` is one.

    The flags are attributes too, such as ``max_epochs``.

    Attributes:
        config: the flags.
        runner: launches, and knows how the model is split over devices.
        callbacks: the callbacks, in the order in which they are called.
        loggers: where values go.
        progress: how far the fit is.
        values: what has been logged.
        should_stop: set it, on any rank, to end training with the epoch, or with the next
            validation in it.
        sanity_checking: True in the validation before training.
        num_batches: number of batches of the loop under way on this rank; None if not known.
        absent_ranks: how many ranks have no batch in the training step under way.
        datamodule: the data module of the call under way, if it has one.

    Raises:
        ConfigurationError: a flag is changed.

    >>> from distmetrics.train import Callback, Trainer
    >>> class StopAfter100Steps(Callback):
    ...     def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
    ...         trainer.should_stop = trainer.global_step >= 100
    >>> trainer = Trainer(strategy="single", max_epochs=3, callbacks=[StopAfter100Steps()])
    >>> isinstance(trainer, RunContext), trainer.max_epochs, trainer.world_size
    (True, 3, 1)
    """

    config: TrainerConfig
    runner: Runner
    callbacks: list[Any]
    loggers: list[Logger]
    progress: LoopProgress
    values: LoggedValues
    should_stop: bool
    sanity_checking: bool
    num_batches: int | None
    absent_ranks: int
    datamodule: Any
    fit_state: Any  # of the fit under way
    log: LogBook | None  # where a value goes that is logged now
    run: Any  # of the call under way

    def __getattr__(self, name: str) -> Any:
        if name in _FLAGS and "config" in vars(self):
            return getattr(self.config, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FLAGS:
            raise ConfigurationError(
                f"trainer.{name} can't be changed", do=f"make another: Trainer({name}=...)."
            )
        super().__setattr__(name, value)

    @property
    def strategy(self) -> Strategy:
        """How the model is split over devices."""
        return self.runner.strategy

    @property
    def current_epoch(self) -> int:
        """Epochs completed; in an epoch its number, from 0."""
        return self.progress.epoch

    @property
    def global_step(self) -> int:
        """Optimizer steps taken."""
        return self.progress.global_step

    @property
    def global_rank(self) -> int:
        """This rank in the job, from 0."""
        return self.runner.global_rank

    @property
    def is_global_zero(self) -> bool:
        """True on rank 0."""
        return self.global_rank == 0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.runner.world_size

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """The latest value of everything logged, by name, in float64 on the CPU.

        A name that is logged for steps and for epochs is here as ``name_step`` and ``name_epoch``.
        ``logged_metrics`` is the same.
        """
        return self.values.callback_metrics

    logged_metrics = callback_metrics

    @property
    def local_metrics(self) -> set[str]:
        """The names whose values are this rank's own."""
        return self.values.local_metrics

    @property
    def fresh_metrics(self) -> set[str]:
        """The names logged for the latest epoch."""
        return self.values.fresh_metrics

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the fit under way; none outside of one."""
        wrapped = [] if self.fit_state is None else self.fit_state.optimizers
        return [each.optimizer for each in wrapped]

    @property
    def logger(self) -> Logger | None:
        """The first logger, if there is one."""
        return next(iter(self.loggers), None)

    def save_checkpoint(self, *paths: str | Path, drop: Sequence[str | Path] = ()) -> None:
        """Write a checkpoint of the fit under way to each path, on rank 0; every rank must call it.

        If a callback calls it, it is written after all callbacks have been called, so that it holds
        their state.

        Args:
            paths: where to.
            drop: files to remove when the others are there.

        Raises:
            ConfigurationError: no fit is under way.
        """
        if self.run is None or self.fit_state is None:
            raise ConfigurationError("there is nothing to save: no fit is under way")
        self.run.save([Path(path) for path in paths], [Path(path) for path in drop])

    def log_values(self, values: Mapping[str, float]) -> None:
        """Log numbers that are the same on every rank: for the loggers and ``callback_metrics``."""
        for name in values:
            check_name(name)
        numbers = {name: as_number(name, value) for name, value in values.items()}
        self.values.note_epoch(numbers, set())
        _publish(self, numbers, set())


def note_step(trainer: RunContext, log: LogBook, *, updated: bool) -> None:
    """Make a training step's values known, to loggers those of each n-th step."""
    trainer.values.note(log.step_values, log.step_local)
    if updated and trainer.global_step % trainer.config.log_every_n_steps == 0:
        _publish(trainer, log.step_values, log.unlogged)


def note_epoch(trainer: RunContext, log: LogBook, logged: Logged, stage: Stage) -> None:
    """Make an epoch's values known."""
    trainer.values.note(log.step_values, log.step_local)
    trainer.values.note_epoch(logged.values, logged.local)
    if stage == "validate":
        trainer.values.validation_metrics = set(logged.values)
    _publish(trainer, logged.values, log.unlogged)


def _publish(trainer: RunContext, values: Mapping[str, Tensor | float], unlogged: Set[str]) -> None:
    """Give the loggers values, on rank 0 alone."""
    if not (trainer.loggers and trainer.is_global_zero):
        return
    numbers = {name: float(value) for name, value in values.items() if name not in unlogged}
    for logger in trainer.loggers if numbers else ():
        logger.log_metrics({"epoch": float(trainer.current_epoch), **numbers}, trainer.global_step)
