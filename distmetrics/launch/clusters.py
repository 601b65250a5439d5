"""Who this process is in a job that a launcher started, by the variables that the launcher sets.

Each launcher that we know is a small function from the environment's variables to an
:class:`~distmetrics.launch.environment.Environment`, or to None where its variables are not there.
A cluster that speaks otherwise is a
:class:`~distmetrics.launch.environment.ClusterEnvironment` of the user's own.
"""

import os
import re
import socket
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from distmetrics.errors import ConfigurationError, compose
from distmetrics.launch.environment import Environment

# Path of the job's key-value store; set for the processes that we start.
OWN_STORE = "DISTMETRICS_STORE"
Variables = Mapping[str, str]
_TORCH_PORT = 29500


def detect(environ: Variables | None = None) -> Environment | None:
    """Return who this process is, or None where nothing launched it as a part of a job.

    Args:
        environ: the variables to read; default those of this process.

    Raises:
        ConfigurationError: variables that are incomplete or make no sense.

    >>> detect({}) is None
    True
    """
    variables = os.environ if environ is None else environ
    environments = (detector(variables) for detector in DETECTORS)
    return next((each for each in environments if each is not None), None)


def reachable(environment: Environment) -> Environment:
    """Return the environment with rank 0's address, asked through MPI if the launcher omits it.

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


def torchrun(environ: Variables) -> Environment | None:
    """Return the place that torchrun gives, and all that speaks like it (Ray, a shell script).

    Our own launch does, and Kubeflow's training operator: without local ranks, since there is one
    process a pod.

    >>> torchrun(dict(RANK="1", WORLD_SIZE="4", MASTER_ADDR="n0", MASTER_PORT="29500")).rank
    1
    >>> pod = dict(KUBERNETES_PORT="tcp", RANK="1", WORLD_SIZE="2", MASTER_ADDR="job-0")
    >>> torchrun(pod).launcher
    'kubeflow'
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    launcher = "torchrun"
    if OWN_STORE in environ:
        launcher = "distmetrics"
    elif "MASTER_ADDR" not in environ:
        raise ConfigurationError(
            "RANK and WORLD_SIZE are set, but MASTER_ADDR is not: ranks cannot find each other",
            do="start the job by torchrun, or set MASTER_ADDR and MASTER_PORT too, or unset both.",
        )
    elif "KUBERNETES_PORT" in environ and "LOCAL_RANK" not in environ:
        launcher = "kubeflow"
        local = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": environ["RANK"]}
        environ = {**environ, **local}
    node = "GROUP_RANK" if "GROUP_RANK" in environ else "NODE_RANK"
    return _place(
        launcher,
        environ,
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        node_rank=_number(launcher, environ, node, 0),
        main_address=environ.get("MASTER_ADDR", "127.0.0.1"),
        default_port=0,
    )


def slurm(environ: Variables) -> Environment | None:
    """Return the place that ``srun`` gives to each task of a step of several.

    An interactive shell is no such task. A batch script is none either, though it has some of the
    variables; what it starts without srun is on its own. Processes of ``mpirun`` inherit the
    variables, and have better ones of their own.

    >>> step = dict(SLURM_STEP_ID="0", SLURM_NODELIST="gpu[07-08]", SLURM_TASKS_PER_NODE="2(x2)")
    >>> task = dict(SLURM_PROCID="3", SLURM_NTASKS="4", SLURM_NODEID="1", SLURM_LOCALID="1")
    >>> place = slurm(step | task)
    >>> place.main_address, place.local_world_size
    ('gpu07', 2)
    """
    if "SLURM_PROCID" not in environ or any(name in environ for name in _SET_BY_MPIRUN_ALONE):
        return None
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    tasks = _number("slurm", environ, count, 1)
    if tasks == 1 or environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None
    if "SLURM_STEP_ID" not in environ:
        what = f"SLURM has a job of {tasks} tasks here, but srun has not started this process: it "
        do = "start it by srun, mpirun or torchrun, or ask SLURM for one task."
        warnings.warn(compose(f"{what}is not one of them", {}, do=do), stacklevel=2)
        return None
    node = _number("slurm", environ, "SLURM_NODEID", 0)
    return _place(
        "slurm",
        environ,
        ("SLURM_PROCID", count, "SLURM_LOCALID", ""),
        local_world_size=_tasks_on(node, environ, tasks),
        node_rank=node,
        main_address=environ.get("MASTER_ADDR") or _first_host(environ),
        default_port=15000 + _number("slurm", environ, "SLURM_JOB_ID", 0) % 10000,
    )


_SET_BY_MPIRUN_ALONE = ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "MPI_LOCALRANKID")


def lsf(environ: Variables) -> Environment | None:
    """Return the place that ``jsrun`` of IBM's LSF gives.

    Rank 0 is on the first machine of the rank file after the launcher's.

    >>> lsf({}) is None
    True
    """
    if "JSM_NAMESPACE_RANK" not in environ or "JSM_NAMESPACE_SIZE" not in environ:
        return None
    return _place(
        "lsf",
        environ,
        tuple(f"JSM_NAMESPACE_{name}" for name in _SUFFIXES),
        main_address=environ.get("MASTER_ADDR") or _rank_file_host(environ),
        default_port=10000 + _number("lsf", environ, "LSB_JOBID", 0) % 1000,
    )


def mpi(environ: Variables) -> Environment | None:
    """Return the place that ``mpirun`` of Open MPI, MPICH, Intel MPI or MVAPICH gives.

    None of them names the machine of rank 0. On one machine that is this one; on several the
    address is left empty, unless ``MASTER_ADDR`` says it, and is exchanged through MPI when the
    ranks join.

    >>> mpi(dict(PMI_RANK="1", PMI_SIZE="2")).launcher
    'mpi'
    """
    for names in _MPI:
        if names[0] in environ and names[1] in environ:
            place = _place("mpi", environ, names, main_address=environ.get("MASTER_ADDR", ""))
            if place.main_address or place.local_world_size < place.world_size:
                return place
            return replace(place, main_address="127.0.0.1")
    return None


_SUFFIXES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
_MPI = (
    tuple(f"OMPI_COMM_WORLD_{name}" for name in _SUFFIXES),
    tuple(f"MV2_COMM_WORLD_{name}" for name in _SUFFIXES),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)

# torchrun and its kin run inside schedulers' jobs, and our own launch inside of any job.
DETECTORS: list[Callable[[Variables], Environment | None]] = [torchrun, slurm, lsf, mpi]


def _place(
    launcher: str,
    environ: Variables,
    names: tuple[str, ...],
    *,
    default_port: int = _TORCH_PORT,
    **known: Any,
) -> Environment:
    """Read a place from the variables of rank, world size, local rank and local world size.

    Args:
        launcher: who set them.
        environ: all variables.
        names: of the four; without the last two, all processes are on one machine.
        default_port: where ``MASTER_PORT`` is not set.
        known: fields that the launcher says otherwise.
    """
    rank, world_size = (_number(launcher, environ, name) for name in names[:2])
    local_world_size = known.pop(
        "local_world_size", _number(launcher, environ, names[3], world_size)
    )
    fields = {"node_rank": rank // max(local_world_size, 1), **known}
    return Environment(
        launcher=launcher,
        rank=rank,
        world_size=world_size,
        local_rank=_number(launcher, environ, names[2], rank),
        local_world_size=local_world_size,
        main_port=_number(launcher, environ, "MASTER_PORT", default_port),
        **fields,
    )


def _number(launcher: str, environ: Variables, name: str, default: int | None = None) -> int:
    text = environ.get(name, "" if default is None else str(default))
    if not text.strip().lstrip("-").isdigit():
        raise ConfigurationError(f"{launcher} set {name}={text!r}, which is no number")
    return int(text)


def _first_host(environ: Variables) -> str:
    """Return the first machine of SLURM's list: ``a[01-03,7],b`` begins with ``a01``."""
    names = ("SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
    hosts = next((environ[name] for name in names if environ.get(name)), "")
    first = re.match(r"([^,\[\]]+)(?:\[([^,\]\-]+)[^\]]*\]([^,\[]*))?", hosts)
    if first is None:
        raise ConfigurationError(
            f"slurm set no list of machines that we can read: {hosts!r}",
            do="set MASTER_ADDR to rank 0's machine.",
        )
    return "".join(part or "" for part in first.groups())


def _tasks_on(node: int, environ: Variables, tasks: int) -> int:
    """Return the number of tasks on a machine.

    SLURM writes ``2(x3),1`` for three machines of two and one of one.
    """
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    if node < len(counts):
        return counts[node]
    return _number("slurm", environ, "SLURM_NTASKS_PER_NODE", tasks)


def _rank_file_host(environ: Variables) -> str:
    path = environ.get("LSB_DJOB_RANKFILE")
    hosts = Path(path).read_text().split() if path and Path(path).is_file() else []
    if not hosts:
        raise ConfigurationError(
            f"lsf names no machine for rank 0: LSB_DJOB_RANKFILE is {path!r}, no such file or one "
            "that is empty",
            do="set MASTER_ADDR to its name.",
        )
    return next((host for host in hosts if host != hosts[0]), hosts[0])
