"""Show what a model consists of."""

from __future__ import annotations

import sys

from distmetrics.arguments import Takes, check, whole
from distmetrics.train.callbacks.base import Callback
from distmetrics.train.context import RunContext
from distmetrics.train.module import Module
from distmetrics.train.tables import print_summary, wanted


class ModelSummary(Callback):
    """Print a table of the model on rank 0 before a fit: names, types and numbers of parameters.

    Args:
        max_depth: how deep to look into submodules.

    Raises:
        MissingDependencyError: rich is not installed.
    """

    def __init__(self, max_depth: int = 1) -> None:
        rule = Takes(lambda value: whole(value, 0), "a whole number from 0 on")
        check("ModelSummary", {"max_depth": max_depth}, {"max_depth": rule})
        wanted(True, None, "the model's table")
        self.max_depth = max_depth

    @staticmethod
    def wanted(flag: bool | None) -> bool:
        """Return what ``enable_model_summary`` means: None is yes where someone can see it."""
        return wanted(flag, sys.stderr, "the model's table")

    def on_fit_start(self, trainer: RunContext, module: Module) -> None:
        """Print it."""
        if trainer.is_global_zero:
            print_summary(module, self.max_depth)
