"""One process's place in a job: as a class to subclass, and as checked data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

from distmetrics.errors import ConfigurationError

__all__ = ["ClusterEnvironment", "Environment"]


class ClusterEnvironment(ABC):
    """One process's place in a job that your own cluster starts: subclass it, and pass it in ``plugins=[...]``.

    What is not overridden is right for one process a machine.

    >>> class Mine(ClusterEnvironment):
    ...     rank, world_size = 1, 2
    ...     main_address, main_port = "node0", 29500
    >>> Environment.of(Mine()).node_rank
    1
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """This process in the job, from 0."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of processes of the job."""

    @property
    @abstractmethod
    def main_address(self) -> str:
        """Where rank 0 is reached."""

    @property
    @abstractmethod
    def main_port(self) -> int:
        """The port there: free on that machine, and the same on every rank."""

    @property
    def launcher(self) -> str:
        """Who started the processes, for messages."""
        return type(self).__name__

    @property
    def local_rank(self) -> int:
        """This process on its machine, from 0."""
        return 0

    @property
    def local_world_size(self) -> int:
        """Number of processes on this machine."""
        return 1

    @property
    def node_rank(self) -> int:
        """This machine, from 0."""
        return self.rank // self.local_world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A :class:`ClusterEnvironment` as plain data, checked when it is made.

    Attributes:
        launcher: who started the processes, for messages.
        rank: this process in the job, from 0.
        world_size: number of processes of the job.
        local_rank: this process on its machine, from 0.
        local_world_size: number of processes on this machine.
        node_rank: this machine, from 0.
        main_address: where rank 0 is reached; empty where the ranks still have to tell each other.
        main_port: the port there; 0 where no port is needed.

    Raises:
        ConfigurationError: a rank outside its world.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int = 0
    main_address: str = "127.0.0.1"
    main_port: int = 0

    def __post_init__(self) -> None:
        for rank, world_size, what in (
            (self.rank, self.world_size, "rank"),
            (self.local_rank, self.local_world_size, "local rank"),
        ):
            if not 0 <= rank < world_size:
                raise ConfigurationError(f"{self.launcher} says {what} {rank} in a world of {world_size}")

    @classmethod
    def of(cls, environment: ClusterEnvironment) -> Environment:
        """Read a user's own environment, once.

        Raises:
            ConfigurationError: it says what can't be.
        """
        return cls(**{field.name: getattr(environment, field.name) for field in fields(cls)})


ClusterEnvironment.register(Environment)
