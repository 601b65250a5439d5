"""What a trainer knows while it runs, and what the loops, the module and the callbacks ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from distmetrics.errors import ConfigurationError, DivergedError
from distmetrics.strategies.base import Strategy
from distmetrics.train.callbacks.base import Callback
from distmetrics.train.log import Logged
from distmetrics.train.logger import Logger
from distmetrics.train.loops import Run
from distmetrics.train.module import Module
from distmetrics.train.snapshot import checkpoint, write

__all__ = ["TrainerState"]

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


class TrainerState:
    """The part of a trainer that changes; see :class:`~distmetrics.train.Trainer` for the attributes."""

    def __init__(self, strategy: Strategy, callbacks: Sequence[Callback]) -> None:
        self.strategy = strategy
        self.callbacks = list(callbacks)
        self.callback_metrics: dict[str, Tensor] = {}
        self.logged_metrics: dict[str, Tensor] = {}
        self.local_metrics: set[str] = set()
        self.fresh_metrics: set[str] = set()
        self.current_epoch = 0
        self.global_step = 0
        self.should_stop = False
        self.validated = False  # whether the epoch's values of validation are there, or there will be none
        self.num_batches: int | None = None  # of the loop under way on this rank; None where not known
        self.absent = 0  # ranks without a batch in the training step under way
        self._logger: Logger | None = None
        self._module: Module | None = None
        self._run: Run | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_logger": None, "_module": None, "_run": None}

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
        return {name: value for name, value in shown if name in labels or name.removesuffix("_step") in labels}

    def save_checkpoint(self, *paths: str | Path) -> None:
        """Write a checkpoint of the fit under way to each path; every rank must call it, rank 0 writes.

        Raises:
            ConfigurationError: no fit is under way.
        """
        if self._run is None:
            raise ConfigurationError("there is nothing to save: no fit is under way")
        content = checkpoint(self, self._run)
        if self.is_global_zero:
            for path in paths:
                write(content, Path(path))

    def call(self, hook: str, *args: Any, module: bool = True, callbacks: bool = True) -> None:
        """Call the module's hook, then the callbacks'; those about a batch are callbacks' alone."""
        assert self._module is not None
        if module:
            getattr(self._module, hook)(*args)
        for callback in self.callbacks if callbacks else ():
            getattr(callback, hook)(self, self._module, *args)

    @contextmanager
    def logging(self, logger: Logger) -> Iterator[None]:
        """Let ``self.log`` of the module go to ``logger`` inside the block."""
        outer, self._logger = self._logger, logger
        try:
            yield
        finally:
            self._logger = outer

    def logger_in_force(self, name: str) -> Logger:
        """Return where a value goes that is logged now.

        Raises:
            ConfigurationError: nothing is under way that it could belong to.
        """
        if self._logger is None:
            raise ConfigurationError(
                f"{name!r} can't be logged here: no epoch is under way\n"
                "Do:     log in a step or in a hook of an epoch (on_train_epoch_end, say)."
            )
        return self._logger

    def require_everyone(self, what: str) -> None:
        """Refuse a collective of the user's in a training step that some rank has no batch for.

        Raises:
            DivergedError: some rank has none, so that it will not come here.
        """
        if self.absent:
            raise DivergedError(
                f"{what} in a training step that {self.absent} of {self.world_size} ranks have no batch for: they "
                "will not come here\n"
                "Likely: loaders of different length, which the trainer did not deal out itself.\n"
                "Do:     give every rank as many batches, or gather in on_train_epoch_end.",
                rank=self.global_rank,
            )

    def note_step(self, logger: Logger) -> None:
        """Make a training step's values known."""
        self._note(logger.step_values, logger.step_local)

    def note_epoch(self, logger: Logger, logged: Logged) -> None:
        """Make an epoch's values known."""
        forked = {key: key._replace(name=f"{key.name}_epoch") for key in logged.forked & logged.values.keys()}
        values = logged.values | {alias: logged.values[key] for key, alias in forked.items()}
        local = logged.local | {alias for key, alias in forked.items() if key in logged.local}
        labelled = {key.label: value for key, value in values.items()}
        self._note(logger.step_values, logger.step_local)
        self._note(labelled, {key.label for key in local})
        self.fresh_metrics |= labelled.keys()

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
