"""What outlives a run: the content of a checkpoint, and what comes home from processes that worked on copies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from distmetrics._version import __version__
from distmetrics.tree import map_leaves

if TYPE_CHECKING:
    from distmetrics.train.loops import Run
    from distmetrics.train.state import TrainerState

__all__ = ["Snapshot", "checkpoint", "write"]


def checkpoint(trainer: TrainerState, run: Run) -> dict[str, Any]:
    """Return what a checkpoint holds; called on every rank, since weights may have to be gathered."""
    return {
        "distmetrics_version": __version__,
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "state_dict": trainer.strategy.weights(run.module),
        "optimizer_states": [trainer.strategy.optimizer_state(run.module, run.optimizer)],
        "lr_schedulers": [schedule.scheduler.state_dict() for schedule in run.schedules],
        "callbacks": [callback.state_dict() for callback in trainer.callbacks],
    }


def write(content: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint so that ``path`` is either whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        torch.save(dict(content), temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class Snapshot:
    """The outcome of a run on rank 0, as it travels to the process that called the trainer."""

    results: list[dict[str, float]]
    progress: dict[str, Any]
    callbacks: Sequence[dict[str, Any]]
    weights: dict[str, Any]

    @classmethod
    def take(
        cls, trainer: TrainerState, module: nn.Module, results: list[dict[str, float]], *, weights: bool
    ) -> Snapshot:
        """Take it, on the CPU, with the weights if they may have changed; called on every rank."""
        state = dict(trainer.strategy.weights(module)) if weights else {}
        return cls(
            results,
            trainer.progress(),
            [callback.state_dict() for callback in trainer.callbacks],
            map_leaves(_home, state),
        )

    def restore(self, trainer: TrainerState, module: nn.Module) -> None:
        """Put it into the caller's own objects."""
        if self.weights:
            trainer.strategy.precision.place(module)
            module.load_state_dict(self.weights)
        for name, value in self.progress.items():
            setattr(trainer, name, value)
        for callback, state in zip(trainer.callbacks, self.callbacks, strict=True):
            callback.load_state_dict(state)


def _home(leaf: Any) -> Any:
    return leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf
