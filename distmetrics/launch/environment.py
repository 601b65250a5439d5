"""Who this process is in a job that something else started: torchrun, a cluster's scheduler, or our
own launch.

A launcher tells by environment variables. Each one that we know is a small function from those
variables to an :class:`Environment`, or to None where the variables are not there. A cluster that
speaks otherwise is a subclass of :class:`ClusterEnvironment`, passed in ``Trainer(plugins=[...])``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace

from distmetrics.errors import ConfigurationError
from distmetrics.launch.clusters import kubeflow, lsf, mpi, own_launch, slurm, torchrun
from distmetrics.launch.place import Environment

# Our own first: a job that we start inside another job. Then torchrun and its kin, which run inside
# schedulers' jobs.
DETECTORS: list[Callable[[Mapping[str, str]], Environment | None]] = [
    own_launch,
    kubeflow,
    torchrun,
    slurm,
    lsf,
    mpi,
]


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
    return next(
        (found for detector in DETECTORS if (found := detector(variables)) is not None), None
    )


def reachable(environment: Environment) -> Environment:
    """Return the environment with rank 0's address: asked through MPI where the launcher does not
    say it.

    Raises:
        ConfigurationError: it is not known, and mpi4py is not there to ask.
    """
    if environment.main_address:
        return environment
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ConfigurationError(
            f"{environment.launcher} runs on several machines and does not say where rank 0 is",
            do="set MASTER_ADDR to its machine on all of them, or pip install mpi4py.",
        ) from error
    mine = (socket.gethostname(), _free_port()) if environment.rank == 0 else None
    address, port = MPI.COMM_WORLD.bcast(mine, root=0)
    return replace(environment, main_address=address, main_port=port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
