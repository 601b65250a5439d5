"""One process's place in a job: as a class to subclass, and as checked data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from distmetrics.arguments import TEXT, Takes, check, whole
from distmetrics.errors import ConfigurationError


class ClusterEnvironment(ABC):
    """One process's place in a job of your own cluster: subclass it, pass it in ``plugins=[...]``.

    What is not overridden is right for one process a machine. Methods may take the place of
    properties. The names of older guides, ``global_rank``, ``master_address`` and ``master_port``,
    are accepted too.

    >>> class Mine(ClusterEnvironment):
    ...     rank, world_size = 1, 2
    ...     main_address, main_port = "node0", 29500
    >>> Environment.of(Mine()).node_rank
    1
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, older in _OLDER_NAMES.items():
            if older in vars(cls) and getattr(getattr(cls, name), "__isabstractmethod__", False):
                setattr(cls, name, property(partial(_read, name=older)))

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse an incomplete class with an error that says how to complete it."""
        missing = [name for name in _TAKES if name in cls.__abstractmethods__]
        if missing:
            raise ConfigurationError(
                f"{cls.__name__} is a cluster environment, and does not say {', '.join(missing)}",
                likely="a class of an older guide.",
                do=f"def {missing[0]}(self): return ..., and so on: rank is this process in the "
                "job, world_size how many there are, main_address and main_port are where rank 0 "
                "is reached.",
            )
        return super().__new__(cls)

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
        node: int = _read(self, "rank") // _read(self, "local_world_size")
        return node


_OLDER_NAMES = {"rank": "global_rank", "main_address": "master_address", "main_port": "master_port"}


def _read(environment: Any, name: str) -> Any:
    """Return what an attribute, property or method of an environment says."""
    value = getattr(environment, name)
    return value() if callable(value) else value


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
        self._check("rank", self.rank, self.world_size)
        self._check("local rank", self.local_rank, self.local_world_size)

    def _check(self, what: str, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise ConfigurationError(
                f"{self.launcher} says {what} {rank} in a world of {world_size}"
            )

    @classmethod
    def of(cls, environment: ClusterEnvironment) -> Environment:
        """Return a user's own environment as data; it is read once.

        Raises:
            ConfigurationError: it says what can't be.
        """
        owner = type(environment).__name__
        values: dict[str, Any] = {}
        for name, takes in _TAKES.items():  # checked one by one: node_rank is computed from others
            values[name] = _read(environment, name)
            check(owner, values, {name: takes})
        if values["local_rank"] >= values["local_world_size"] == 1:
            raise ConfigurationError(
                f"{owner} says local rank {values['local_rank']} in a world of 1, which "
                "local_world_size is by default",
                do="let local_world_size say how many processes this machine has.",
            )
        return cls(**values)


_DO = "return a number: int(os.environ[...]), say."
_RANK = Takes(lambda value: whole(value, 0), "a whole number from 0 on", _DO)
_COUNT = Takes(lambda value: whole(value, 1), "a whole number from 1 on", _DO)
_ADDRESS = Takes(lambda value: isinstance(value, str), "the name or address of rank 0's machine")
_PORT = Takes(lambda value: whole(value, 0) and value < 2**16, "a port's number", _DO)
_TAKES = {
    "launcher": TEXT,
    "rank": _RANK,
    "world_size": _COUNT,
    "local_rank": _RANK,
    "local_world_size": _COUNT,
    "node_rank": _RANK,
    "main_address": _ADDRESS,
    "main_port": _PORT,
}


ClusterEnvironment.register(Environment)
