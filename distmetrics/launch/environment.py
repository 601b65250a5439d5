"""Who this process is in a job that something else started: torchrun, or our own launch.

A launcher tells by environment variables. Each one that we know is a small function from those variables to
an :class:`Environment`, or to None where the variables are not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from distmetrics.errors import ConfigurationError

__all__ = ["OWN_STORE", "ClusterEnvironment", "Environment", "detect"]

OWN_STORE = "DISTMETRICS_STORE"  # path of the job's key-value store; set for the processes that we start


@runtime_checkable
class ClusterEnvironment(Protocol):
    """One process's place in a job.

    Attributes:
        launcher: who started the processes, for messages.
        rank: this process in the job, from 0.
        world_size: number of processes of the job.
        local_rank: this process on its machine, from 0.
        local_world_size: number of processes on this machine.
        node_rank: this machine, from 0.
        main_address: where rank 0 is reached.
        main_port: the port there; 0 where no port is needed.
    """

    @property
    def launcher(self) -> str:
        """Who started the processes."""
        ...

    @property
    def rank(self) -> int:
        """This process in the job."""
        ...

    @property
    def world_size(self) -> int:
        """Number of processes."""
        ...

    @property
    def local_rank(self) -> int:
        """This process on its machine."""
        ...

    @property
    def local_world_size(self) -> int:
        """Number of processes on this machine."""
        ...

    @property
    def node_rank(self) -> int:
        """This machine."""
        ...

    @property
    def main_address(self) -> str:
        """Where rank 0 is reached."""
        ...

    @property
    def main_port(self) -> int:
        """The port there, or 0."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A :class:`ClusterEnvironment` as plain data, checked when it is made.

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


def detect(environ: Mapping[str, str] | None = None) -> Environment | None:
    """Find out who this process is, or None where nothing launched it as a part of a job.

    Args:
        environ: the variables to read; default those of this process.

    Raises:
        ConfigurationError: variables that are incomplete or make no sense.

    >>> detect({}) is None
    True
    """
    variables = os.environ if environ is None else environ
    return next((found for detector in DETECTORS if (found := detector(variables)) is not None), None)


def own_launch(environ: Mapping[str, str]) -> Environment | None:
    """Read what our own launch sets for the ranks that it starts."""
    if OWN_STORE not in environ:
        return None
    return _torch_style("distmetrics", environ)


def torchrun(environ: Mapping[str, str]) -> Environment | None:
    """Read what torchrun sets, and everything that speaks like it (Ray, Kubeflow, a shell script).

    >>> torchrun(dict(RANK="1", WORLD_SIZE="4", LOCAL_RANK="1", MASTER_ADDR="n0", MASTER_PORT="29500")).rank
    1
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    return _torch_style("torchrun", environ)


DETECTORS: list[Callable[[Mapping[str, str]], Environment | None]] = [own_launch, torchrun]


def _torch_style(launcher: str, environ: Mapping[str, str]) -> Environment:
    rank = _number(launcher, environ, "RANK")
    world_size = _number(launcher, environ, "WORLD_SIZE")
    node = "GROUP_RANK" if "GROUP_RANK" in environ else "NODE_RANK"
    if launcher != "distmetrics" and "MASTER_ADDR" not in environ:
        raise ConfigurationError(
            "RANK and WORLD_SIZE are set, but MASTER_ADDR is not: ranks cannot find each other\n"
            "Do:     start the job by torchrun, or set MASTER_ADDR and MASTER_PORT too, or unset both."
        )
    return Environment(
        launcher=launcher,
        rank=rank,
        world_size=world_size,
        local_rank=_number(launcher, environ, "LOCAL_RANK", rank),
        local_world_size=_number(launcher, environ, "LOCAL_WORLD_SIZE", world_size),
        node_rank=_number(launcher, environ, node, 0),
        main_address=environ.get("MASTER_ADDR", "127.0.0.1"),
        main_port=_number(launcher, environ, "MASTER_PORT", 0),
    )


def _number(launcher: str, environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "" if default is None else str(default))
    if not text.strip().lstrip("-").isdigit():
        raise ConfigurationError(f"{launcher} set {name}={text!r}, which is no number")
    return int(text)
