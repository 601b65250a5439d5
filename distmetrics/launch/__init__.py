"""Who each process of a job is, under a launcher of your own."""

from distmetrics.launch.environment import ClusterEnvironment

__all__ = ["ClusterEnvironment"]
