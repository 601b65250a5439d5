"""One's own training loop on one device or many: :class:`Runner`."""

from distmetrics.run.runner import Runner
from distmetrics.run.wrapped import RunnerModule
from distmetrics.run.wrapped_loader import RunnerLoader
from distmetrics.run.wrapped_optimizer import RunnerOptimizer

__all__ = ["Runner", "RunnerLoader", "RunnerModule", "RunnerOptimizer"]
