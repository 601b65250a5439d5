"""One call of the trainer on one rank: who hears of it, what it makes known, its data."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distmetrics.run.context import RunContext
from distmetrics.run.logbook import LogBook
from distmetrics.run.module import Module


class Run:
    """One call of the trainer on one rank.

    Args:
        trainer: what hooks get.
        module: what is run.
        write: writes a checkpoint of the fit under way to some files, and removes others.

    Attributes:
        comm: who talks to the other ranks.
        shards: who talks about data and values: a layout, where there is one.
    """

    def __init__(
        self,
        trainer: RunContext,
        module: Module,
        write: Callable[["Run", Sequence[Path], Sequence[Path]], None],
    ) -> None:
        self.trainer = trainer
        self.module = module
        self.comm = trainer.strategy.comm()
        self.shards = trainer.strategy.shards()
        self._write = write
        # Put off until a hook of the callbacks is over: files to write, and files to drop.
        self._saves: tuple[list[Path], list[Path]] | None = None

    def call(self, hook: str, *args: Any, module: bool = True, callbacks: bool = True) -> None:
        """Call the module's hook, then the callbacks', then save what these asked for."""
        if module:
            getattr(self.module, hook)(*args)
        trainer = self.trainer
        if not (callbacks and trainer.callbacks):
            return
        outer = self._saves
        paths: list[Path] = []
        drop: list[Path] = []
        self._saves = paths, drop
        try:
            for callback in trainer.callbacks:
                getattr(callback, hook)(trainer, self.module, *args)
        finally:
            self._saves = outer
        if paths:
            self._write(self, paths, drop)

    def save(self, paths: Sequence[Path], drop: Sequence[Path]) -> None:
        """Save a checkpoint, inside a hook of the callbacks when all of them have been called."""
        if self._saves is None:
            self._write(self, paths, drop)
        else:
            self._saves[0].extend(paths)
            self._saves[1].extend(drop)

    def dealt(self, loaders: Sequence[Any], *, train: bool = False) -> list[Any]:
        """Return loaders of this rank's part of the data, on its device."""
        runner, config = self.trainer.runner, self.trainer.config
        deals = config.use_distributed_sampler
        return [
            runner.setup_dataloaders(each, train=train, replace_sampler=deals) for each in loaders
        ]

    @contextmanager
    def logging(self, log: LogBook | None, batches: int | None) -> Iterator[None]:
        """Let ``self.log`` of the module go to ``log`` inside the block, a loop of ``batches``."""
        trainer = self.trainer
        outer, outer_batches = trainer.log, trainer.num_batches
        trainer.log, trainer.num_batches = log, batches
        try:
            yield
        finally:
            trainer.log = outer
            if outer_batches is not None:  # of the fit around it; else hooks of its end still ask
                trainer.num_batches = outer_batches
