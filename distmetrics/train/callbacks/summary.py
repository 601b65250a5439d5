"""Show what a model consists of."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from distmetrics.arguments import Takes, check, whole
from distmetrics.train.callbacks.base import Callback
from distmetrics.train.tables import print_summary, wanted

if TYPE_CHECKING:
    from distmetrics.train.module import Module
    from distmetrics.train.trainer import Trainer


class ModelSummary(Callback):
    """Print a table of the model on rank 0 before a fit: names, types and numbers of parameters.

    Args:
        max_depth: how deep to look into submodules.

    Raises:
        MissingDependencyError: rich is not installed.
    """

    def __init__(self, max_depth: int = 1) -> None:
        check(
            "ModelSummary",
            locals(),
            {"max_depth": Takes(lambda value: whole(value, 0), "a whole number from 0 on")},
        )
        wanted(True, None, "the model's table")
        self.max_depth = max_depth

    @staticmethod
    def wanted(flag: bool | None) -> bool:
        """Resolve the trainer's ``enable_model_summary``: None is yes where rich is installed and
        someone looks.
        """
        return wanted(flag, sys.stderr, "the model's table")

    def on_fit_start(self, trainer: Trainer, module: Module) -> None:
        """Print it."""
        if trainer.is_global_zero:
            print_summary(module, self.max_depth)
