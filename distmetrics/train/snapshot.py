"""What comes home from processes that worked on copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from distmetrics.tree import map_leaves

if TYPE_CHECKING:
    from distmetrics.train.state import TrainerState


@dataclass(frozen=True)
class Snapshot:
    """The outcome of a run on rank 0, as it travels to the process that called the trainer."""

    results: Any
    progress: dict[str, Any]
    callbacks: Sequence[dict[str, Any]]
    weights: dict[str, Any]

    @classmethod
    def take(
        cls, trainer: TrainerState, module: nn.Module, results: Any, *, weights: bool
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
