"""One call of the trainer on one rank: who hears of it, and what it makes known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distmetrics.collectives.ops import barrier
from distmetrics.train.checkpoint import checkpoint
from distmetrics.train.checkpoint_file import write
from distmetrics.train.context import RunContext
from distmetrics.train.logbook import LogBook
from distmetrics.train.module import Module

Paths = Sequence[str | Path]


class Run:
    """One call of the trainer on one rank.

    Args:
        trainer: what hooks get.
        module: what is run.

    Attributes:
        comm: who talks to the other ranks.
    """

    def __init__(self, trainer: RunContext, module: Module) -> None:
        self.trainer = trainer
        self.module = module
        self.comm = trainer.strategy.comm()
        self._saves: list[tuple[Paths, Paths]] | None = None  # put off until a hook is over

    def call(self, hook: str, *args: Any, module: bool = True, callbacks: bool = True) -> None:
        """Call the module's hook, then the callbacks', then save what these asked for."""
        if module:
            getattr(self.module, hook)(*args)
        trainer = self.trainer
        if not (callbacks and trainer.callbacks):
            return
        outer, self._saves = self._saves, []
        try:
            for callback in trainer.callbacks:
                getattr(callback, hook)(trainer, self.module, *args)
            saves = self._saves
        finally:
            self._saves = outer
        if saves:
            self._write(saves)

    def save(self, paths: Paths, drop: Paths) -> None:
        """Save a checkpoint, inside a hook of the callbacks when all of them have been called."""
        if self._saves is None:
            self._write([(paths, drop)])
        else:
            self._saves.append((paths, drop))

    def checkpoint(self, *, alone: bool = False) -> dict[str, Any]:
        """Return what a checkpoint of the fit under way holds, with what hooks add."""
        assert self.trainer.fit_state is not None
        content = checkpoint(self.trainer, self.module, self.trainer.fit_state, alone=alone)
        self.call("on_save_checkpoint", content)
        return content

    def _write(self, saves: Sequence[tuple[Paths, Paths]]) -> None:
        content = self.checkpoint()
        if self.trainer.is_global_zero:
            for path in dict.fromkeys(Path(path) for paths, _ in saves for path in paths):
                write(content, path)
            for path in (Path(path) for _, drop in saves for path in drop):
                path.unlink(missing_ok=True)
        barrier(comm=self.comm, name="checkpoint")

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
