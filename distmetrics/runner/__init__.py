"""One's own training loop on one device or many: :class:`Runner`."""

from distmetrics.runner.core import Runner
from distmetrics.runner.loader import RunnerLoader
from distmetrics.runner.model import RunnerModule
from distmetrics.runner.optimizer import RunnerOptimizer

__all__ = ["Runner", "RunnerLoader", "RunnerModule", "RunnerOptimizer"]
