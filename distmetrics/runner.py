"""Your own training loop on one device or many: :class:`~distmetrics.Runner`."""

from distmetrics.run.runner import Runner
from distmetrics.run.wrapped import RunnerLoader, RunnerModule, RunnerOptimizer

__all__ = ["Runner", "RunnerLoader", "RunnerModule", "RunnerOptimizer"]
