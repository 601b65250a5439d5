"""Who a process is in a job: by the variables of its launcher, or by a user's own class."""

import os
import re
import socket
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from distmetrics.errors import ConfigurationError, MissingDependencyError

# Folder of the job's key-value store; set for the processes that we start.
OWN_STORE = "DISTMETRICS_STORE"
Variables = Mapping[str, str]
_MUST_BE_SAID = ("rank", "world_size", "main_address", "main_port")
_OLDER_NAMES = {"rank": "global_rank", "main_address": "master_address", "main_port": "master_port"}


class ClusterEnvironment:
    """One process's place in a job of your own cluster: subclass it, pass it in ``plugins=[...]``.

    Each may be an attribute, a property or a method. ``global_rank``, ``master_address`` and
    ``master_port`` are accepted in the place of the first, third and fourth.

    Attributes:
        rank: this process in the job, from 0.
        world_size: number of processes of the job.
        main_address: where rank 0 is reached.
        main_port: the port there: free on that machine, and the same on every rank.
        local_rank: this process on its machine, from 0; by default 0.
        local_world_size: number of processes on this machine; by default 1.
        node_rank: this machine, from 0; by default ``rank // local_world_size``.
        launcher: who started the processes, for messages; by default the name of the class.

    Raises:
        ConfigurationError: one of the first four is missing.

    >>> class Mine(ClusterEnvironment):
    ...     rank, world_size = 1, 2
    ...     main_address, main_port = "node0", 29500
    >>> Mine().rank  # Runner(plugins=[Mine()])
    1
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse an incomplete class."""
        for name, older in _OLDER_NAMES.items():
            if hasattr(cls, older) and not hasattr(cls, name):
                setattr(cls, name, getattr(cls, older))
        missing = [name for name in _MUST_BE_SAID if not hasattr(cls, name)]
        if missing:
            raise ConfigurationError(
                f"{cls.__name__} is a cluster environment, and does not say {', '.join(missing)}",
                do=f"def {missing[0]}(self): return ..., and so on.",
            )
        return super().__new__(cls)


_BY_RANK = -1  # follows from the rank and the number of processes on a machine


@dataclass(slots=True, kw_only=True)
class Environment:
    """A :class:`ClusterEnvironment` as plain data.

    ``main_address`` is empty where the ranks still have to tell each other.

    Raises:
        ConfigurationError: a value of another type, or a rank outside its world.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int = _BY_RANK
    local_world_size: int = 1
    node_rank: int = _BY_RANK
    main_address: str = "127.0.0.1"
    main_port: int = 29500

    def __post_init__(self) -> None:
        node_rank, local_rank = divmod(self.rank, max(self.local_world_size, 1))
        if self.local_rank == _BY_RANK:
            self.local_rank = local_rank
        if self.node_rank == _BY_RANK:
            self.node_rank = node_rank
        is_local = 0 <= self.local_rank < self.local_world_size
        if not (0 <= self.rank < self.world_size and is_local):
            raise ConfigurationError(
                f"{self.launcher} says rank {self.rank} in a world of {self.world_size}, "
                f"local rank {self.local_rank} in a world of {self.local_world_size}"
            )

    @classmethod
    def of(cls, environment: ClusterEnvironment) -> Self:
        """Return a user's own environment as data; it is read once."""
        launcher = type(environment).__name__
        values: dict[str, Any] = {"launcher": launcher}
        for name in set(dir(environment)).intersection(cls.__slots__):
            value = getattr(environment, name)
            value = value() if callable(value) else value
            is_text = name in ("launcher", "main_address")
            values[name] = value if is_text else _number(launcher, name, value)
        return cls(**values)


def _number(launcher: str, name: str, value: Any) -> int:
    try:
        return int(str(value))
    except ValueError:
        what = f"{launcher} set {name}={value!r}, which is no number"
        raise ConfigurationError(what) from None


class _Variables(NamedTuple):
    """What a launcher calls the place of a process; "" for what it does not say."""

    launcher: str
    rank: str
    world_size: str
    local_rank: str = ""
    local_world_size: str = ""
    node_rank: str = ""
    marker: str = ""  # set by this launcher, and not by others that use the same names


_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
_SUFFIXES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
_SLURM = ("SLURM_LOCALID", "", "SLURM_NODEID", "SLURM_STEP_ID")
# The first whose variables are set counts. Launchers that run inside others come first: our own
# inside any, torchrun inside a scheduler's job, mpirun inside a job of SLURM.
_LAUNCHERS = (
    _Variables("distmetrics", *_TORCHRUN, marker=OWN_STORE),
    _Variables("torchrun", *_TORCHRUN, "GROUP_RANK", marker="GROUP_RANK"),
    _Variables("torchrun", *_TORCHRUN, "NODE_RANK", marker="LOCAL_RANK"),  # Ray Train
    _Variables("kubeflow", "RANK", "WORLD_SIZE", marker="KUBERNETES_PORT"),
    _Variables("torchrun", *_TORCHRUN),  # a shell script
    _Variables("lsf", *(f"JSM_NAMESPACE_{suffix}" for suffix in _SUFFIXES)),
    _Variables("mpi", *(f"OMPI_COMM_WORLD_{suffix}" for suffix in _SUFFIXES)),
    _Variables("mpi", *(f"MV2_COMM_WORLD_{suffix}" for suffix in _SUFFIXES)),
    _Variables("mpi", *_HYDRA, marker="MPI_LOCALRANKID"),
    _Variables("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", *_SLURM),
    _Variables("slurm", "SLURM_PROCID", "SLURM_NTASKS", *_SLURM),
    _Variables("mpi", *_HYDRA),  # srun may set the first two
)


def detect(environ: Variables | None = None) -> Environment | None:
    """Return who this process is, or None where nothing launched it as a part of a job.

    Raises:
        ConfigurationError: variables that are incomplete or make no sense.

    >>> detect(dict(PMI_RANK="1", PMI_SIZE="2")).launcher
    'mpi'
    """
    variables = os.environ if environ is None else environ
    is_shell = variables.get("SLURM_JOB_NAME") in ("bash", "interactive")
    for names in _LAUNCHERS:
        needed = names.rank, names.world_size, names.marker or names.rank
        if all(name in variables for name in needed):
            is_alone = is_shell or variables[names.world_size] == "1"
            return None if names.launcher == "slurm" and is_alone else _place(names, variables)
    tasks = variables.get("SLURM_NTASKS", "1")
    if "SLURM_PROCID" in variables and tasks != "1" and not is_shell:
        what = f"SLURM has a job of {tasks} tasks here, but srun has not started this process; "
        do = "start it by srun, mpirun or torchrun, or ask SLURM for one task."
        warnings.warn(what + do, stacklevel=2)
    return None


def _place(names: _Variables, environ: Variables) -> Environment:
    """Read the place that a launcher gives, by its names of variables."""

    def number(name: str, default: int = 0) -> int:
        return _number(names.launcher, name, environ.get(name, default))

    rank, world_size = number(names.rank), number(names.world_size)
    on_one_machine = 1 if names.launcher == "kubeflow" else world_size
    local_world_size = number(names.local_world_size, on_one_machine)
    node_rank = number(names.node_rank, _BY_RANK)
    address, port = "", 29500
    if names.launcher == "slurm":
        local_world_size = _slurm_tasks(environ, node_rank) or world_size
        machines = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST", "")
        # The first of gpu[07-08,11]-ib,b2 is gpu07-ib.
        address = re.sub(r"\[(\w+)[^]]*\]", r"\1", machines).partition(",")[0]
        port = 15000 + number("SLURM_JOB_ID") % 10000
    elif names.launcher == "lsf":
        file = Path(environ.get("LSB_DJOB_RANKFILE", ""))
        hosts = list(dict.fromkeys(file.read_text().split())) if file.is_file() else []
        address = "".join(hosts[1:2] or hosts)  # the launcher's own machine comes first
        port = 10000 + number("LSB_JOBID") % 1000
    elif names.launcher in ("torchrun", "kubeflow") and "MASTER_ADDR" not in environ:
        raise ConfigurationError(
            "RANK and WORLD_SIZE are set, but MASTER_ADDR is not: ranks cannot find each other",
            do="start the job by torchrun, or set MASTER_ADDR and MASTER_PORT too, or unset both.",
        )
    if local_world_size >= world_size:
        address = address or "127.0.0.1"
    return Environment(
        launcher=names.launcher,
        rank=rank,
        world_size=world_size,
        local_rank=number(names.local_rank, _BY_RANK),
        local_world_size=local_world_size,
        node_rank=node_rank,
        main_address=environ.get("MASTER_ADDR") or address,
        main_port=number("MASTER_PORT", port),
    )


def _slurm_tasks(environ: Variables, node_rank: int) -> int:
    """Return the number of tasks on a machine: 2(x3),1 is three machines of two and one of one."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        node_rank -= int(times or 1)
        if node_rank < 0:
            return int(count)
    return 0


def reachable(environment: Environment) -> Environment:
    """Return the environment with rank 0's address, asked through MPI if the launcher omits it.

    Raises:
        MissingDependencyError: it is not known, and mpi4py is not there to ask.
    """
    if environment.main_address:
        return environment
    try:
        from mpi4py import MPI
    except ImportError as error:
        why = f"{environment.launcher} without MASTER_ADDR, the name of rank 0's machine,"
        raise MissingDependencyError.of("mpi4py", why) from error
    address = MPI.COMM_WORLD.bcast(socket.gethostname(), root=0)
    return replace(environment, main_address=address)
