"""Processes of a job: who starts them, and who each of them is."""

from distmetrics.launch.environment import ClusterEnvironment

__all__ = ["ClusterEnvironment"]
