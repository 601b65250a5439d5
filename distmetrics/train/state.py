"""What a trainer knows while it runs, and what the loops, the module and the callbacks ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from distmetrics.collectives.ops import barrier
from distmetrics.errors import ConfigurationError, DivergedError
from distmetrics.strategies.base import Strategy
from distmetrics.train.callbacks.base import Callback
from distmetrics.train.combine import Logged
from distmetrics.train.data import DataModule
from distmetrics.train.files import write
from distmetrics.train.kept import KeptFlags
from distmetrics.train.log_options import as_tensor, check_name
from distmetrics.train.logbook import LogBook, Stage
from distmetrics.train.loggers.base import Logger
from distmetrics.train.loops import Position, Run
from distmetrics.train.manual import is_wrapped, share_gradients
from distmetrics.train.module import Module
from distmetrics.train.optimizers import Schedule
from distmetrics.train.resume import checkpoint

_PROGRESS = (
    "current_epoch",
    "global_step",
    "should_stop",
    "callback_metrics",
    "logged_metrics",
    "local_metrics",
    "fresh_metrics",
    "validated",
)


class TrainerState(KeptFlags):
    """The part of a trainer that changes; see :class:`~distmetrics.train.Trainer` for the
    attributes.
    """

    def __init__(
        self, strategy: Strategy, callbacks: Sequence[Callback], loggers: Sequence[Logger]
    ) -> None:
        self.strategy = strategy
        self.callbacks = list(callbacks)
        self.loggers = list(loggers)
        self.position = Position()
        self.is_resumed = False  # whether the fit under way goes on from a checkpoint
        self.sanity_checking = False
        self.validation_metrics: set[str] = set()
        self.callback_metrics: dict[str, Tensor] = {}
        self.logged_metrics: dict[str, Tensor] = {}
        self.local_metrics: set[str] = set()
        self.fresh_metrics: set[str] = set()
        self.current_epoch = 0
        self.global_step = 0
        self.should_stop = False
        self.validated = (
            False  # whether the epoch's values of validation are there, or there will be none
        )
        self.num_batches: int | None = (
            None  # of the loop under way on this rank; None where not known
        )
        self.absent = 0  # ranks without a batch in the training step under way
        self.datamodule: DataModule | None = None
        self._logger: LogBook | None = None
        self._module: Module | None = None
        self._run: Run | None = None
        self._saves: list[tuple[Sequence[Path], Sequence[Path]]] | None = (
            None  # put off until a hook is over
        )

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {
            "_logger": None,
            "_module": None,
            "_run": None,
            "_saves": None,
            "datamodule": None,
        }

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.strategy.world_size if self._module is None else self.strategy.comm().world_size

    @property
    def global_rank(self) -> int:
        """This rank in the job, from 0."""
        return self.strategy.comm().rank

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0."""
        return self.global_rank == 0

    @property
    def progress_bar_metrics(self) -> dict[str, Tensor]:
        """The latest values logged with ``prog_bar=True``."""
        labels = set() if self._logger is None else self._logger.prog_bar
        shown = self.logged_metrics.items()
        return {name: value for name, value in shown if name in labels}

    @property
    def logger(self) -> Logger | None:
        """The first logger, if there is one."""
        return self.loggers[0] if self.loggers else None

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the fit under way; none outside of one."""
        return [] if self._run is None else self._run.optimizers

    @property
    def schedules(self) -> Sequence[Schedule]:
        """The learning-rate schedulers of the fit under way, and when they step."""
        return () if self._run is None else self._run.schedules

    @property
    def validates_within_epochs(self) -> bool:
        """Whether there may be several validations in an epoch of the fit under way."""
        once = (
            isinstance(self.val_check_interval, float) and self.val_check_interval == 1.0
        )  # 1 is after each step
        return self._run is not None and bool(self._run.val_loaders) and not once

    @property
    def why_unvalidated(self) -> str:
        """Why the fit under way has no validation; nothing where it has one."""
        if self._run is None or self._run.val_loaders:
            return ""
        if self.limit_val_batches == 0:
            return "limit_val_batches=0 turns it off"
        return "it has no loader of validation data, or the module no validation_step"

    def save_checkpoint(self, *paths: str | Path, drop: Sequence[str | Path] = ()) -> None:
        """Write a checkpoint of the fit under way to each path; every rank must call it, rank 0
        writes.

        Called by a callback it is written when all callbacks have had their turn, so that it holds
        what they have noted.

        Args:
            paths: where to.
            drop: files to remove when the others are there.

        Raises:
            ConfigurationError: no fit is under way.
        """
        if self._run is None:
            raise ConfigurationError("there is nothing to save: no fit is under way")
        save = ([Path(path) for path in paths], [Path(path) for path in drop])
        if self._saves is None:
            self._save([save])
        else:
            self._saves.append(save)

    def _save(self, saves: Sequence[tuple[Sequence[Path], Sequence[Path]]]) -> None:
        assert self._run is not None
        content = checkpoint(self, self._run)
        if self.is_global_zero:
            for path in dict.fromkeys(path for paths, _ in saves for path in paths):
                write(content, path)
            for path in (path for _, dropped in saves for path in dropped):
                path.unlink(missing_ok=True)
        barrier(comm=self.strategy.comm(), name="checkpoint")

    def call(self, hook: str, *args: Any, module: bool = True, callbacks: bool = True) -> None:
        """Call the module's hook, then the callbacks', then write the checkpoints that these asked
        for.
        """
        assert self._module is not None
        if module:
            getattr(self._module, hook)(*args)
        if not (callbacks and self.callbacks):
            return
        outer, self._saves = self._saves, []
        try:
            for callback in self.callbacks:
                getattr(callback, hook)(self, self._module, *args)
            wanted = self._saves
        finally:
            self._saves = outer
        if wanted:
            self._save(wanted)

    def update(self, optimizer: Optimizer, *, clip: float | None = None) -> None:
        """Let an optimizer step with the gradients that are there, and clear them."""
        assert self._module is not None
        self.call("on_before_optimizer_step", optimizer)
        self.strategy.update(self._module, optimizer, clip=clip)
        self.global_step += 1

    def manual_backward(self, loss: Tensor) -> None:
        """Compute gradients in a step that does so itself."""
        assert self._run is not None
        self.call("on_before_backward", loss)
        self.strategy.backward(loss)
        self._run.backwards += 1
        if is_wrapped(self._run.step):
            share_gradients(self._run.module, self.strategy.comm())
        self.call("on_after_backward")

    def check_shared(self, optimizer: Optimizer) -> None:
        """Check that the gradients which an optimizer is about to step with are those of all ranks."""
        assert self._run is not None
        seen = self._run.stepped_at.get(id(optimizer), 0)
        self._run.stepped_at[id(optimizer)] = self._run.backwards
        has_gradients = any(
            p.grad is not None for group in optimizer.param_groups for p in group["params"]
        )
        if self.world_size > 1 and has_gradients and seen == self._run.backwards:
            raise ConfigurationError(
                f"{type(self._run.module).__name__} steps its {type(optimizer).__name__} with "
                "gradients that "
                "manual_backward has not made: they are this rank's alone, and the ranks' "
                "weights would part",
                likely="loss.backward() in training_step.",
                do="self.manual_backward(loss).",
                rank=self.global_rank,
            )

    @contextmanager
    def counting(self, batches: int | None) -> Iterator[None]:
        """Let ``num_batches`` be that of an evaluation inside the block."""
        outer, self.num_batches = self.num_batches, batches
        try:
            yield
        finally:
            self.num_batches = outer

    @contextmanager
    def logging(self, logger: LogBook) -> Iterator[None]:
        """Let ``self.log`` of the module go to ``logger`` inside the block."""
        outer, self._logger = self._logger, logger
        try:
            yield
        finally:
            self._logger = outer

    def logger_in_force(self, name: str) -> LogBook:
        """Return where a value goes that is logged now.

        Raises:
            ConfigurationError: nothing is under way that it could belong to.
        """
        if self._logger is None:
            raise ConfigurationError(
                f"{name!r} can't be logged here: no epoch is under way, or its values are "
                "combined already",
                likely="a callback's hook of an epoch's end: callbacks hear of it when the "
                "values are there.",
                do="log in a step, in the module's own on_train_epoch_end or "
                "on_validation_epoch_end, or in\n"
                "        a callback's on_train_batch_end; what is the same number on every rank "
                "can be made known\n"
                f"        here: trainer.log_values({{{name!r}: number}}).",
            )
        return self._logger

    def require_everyone(self, what: str) -> None:
        """Refuse a collective of the user's in a training step that some rank has no batch for.

        Raises:
            DivergedError: some rank has none, so that it will not come here.
        """
        if self.absent:
            raise DivergedError(
                f"{what} in a training step that {self.absent} of {self.world_size} ranks have "
                "no batch for: they "
                "will not come here",
                likely="loaders of different length, which the trainer did not deal out itself.",
                do="give every rank as many batches, or gather in on_train_epoch_end.",
                rank=self.global_rank,
            )

    def note_step(self, log: LogBook, *, updated: bool = True) -> None:
        """Make a training step's values known; loggers hear of each ``log_every_n_steps``-th step."""
        if log.step_values:
            self._note(log.step_values, log.step_local)
        if updated and self.loggers and self.global_step % self.log_every_n_steps == 0:
            self._publish(log.step_values, log.unlogged)

    def note_epoch(self, log: LogBook, logged: Logged, *, stage: Stage = "train") -> None:
        """Make an epoch's values known."""
        values = {key.label: value for key, value in logged.values.items()}
        self._note(log.step_values, log.step_local)
        self._note(values, {key.label for key in logged.local})
        self.fresh_metrics |= values.keys()
        if stage == "validate":
            self.validation_metrics = set(values)
        self._publish(values, log.unlogged)

    def log_values(self, values: Mapping[str, float]) -> None:
        """Make numbers known that are the same on every rank, and give them to the loggers."""
        for name in values:
            check_name(name)
        self._note(
            {name: as_tensor(f"the value of {name!r}", value) for name, value in values.items()},
            set(),
        )
        self.fresh_metrics |= values.keys()
        self._publish({name: self.logged_metrics[name] for name in values}, set())

    def _publish(self, values: Mapping[str, Tensor], unlogged: set[str]) -> None:
        """Give the loggers values, on rank 0 alone."""
        if not (self.loggers and self.is_global_zero):
            return
        numbers = {name: float(value) for name, value in values.items() if name not in unlogged}
        for logger in self.loggers if numbers else ():
            logger.log_metrics({"epoch": float(self.current_epoch), **numbers}, self.global_step)

    def _note(self, values: Mapping[str, Tensor], local: set[str]) -> None:
        self.logged_metrics.update(values)
        self.callback_metrics.update(values)
        self.local_metrics -= values.keys()
        self.local_metrics |= local

    def progress(self) -> dict[str, Any]:
        """Return how far the run is and what it has logged, on the CPU."""
        state = {name: getattr(self, name) for name in _PROGRESS}
        for name in ("callback_metrics", "logged_metrics"):
            state[name] = {label: value.detach().cpu() for label, value in state[name].items()}
        return state
