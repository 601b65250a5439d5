"""The testing kit: worlds of threads and of processes."""

from distmetrics.testing.world import Outcome, outcomes, run

__all__ = ["Outcome", "outcomes", "run"]
