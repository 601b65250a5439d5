"""What each launcher says in environment variables: one small function from variables to a place,
or to None.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path

from distmetrics.errors import ConfigurationError
from distmetrics.launch.place import Environment

OWN_STORE = (
    "DISTMETRICS_STORE"  # path of the job's key-value store; set for the processes that we start
)
Variables = Mapping[str, str]
_PORT = 29500  # torch's own default


def own_launch(environ: Variables) -> Environment | None:
    """Read what our own launch sets for the ranks that it starts."""
    if OWN_STORE not in environ:
        return None
    return _torch_style("distmetrics", environ)


def kubeflow(environ: Variables) -> Environment | None:
    """Read what Kubeflow's training operator sets: torchrun's variables without local ones, a
    process a pod.

    >>> kubeflow(dict(KUBERNETES_PORT="tcp", RANK="1", WORLD_SIZE="2", MASTER_ADDR="job-0")).local_rank
    0
    """
    if "KUBERNETES_PORT" not in environ or "LOCAL_RANK" in environ or "RANK" not in environ:
        return None
    if "WORLD_SIZE" not in environ:
        return None
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": environ["RANK"]}
    return _torch_style("kubeflow", {**environ, **alone})


def torchrun(environ: Variables) -> Environment | None:
    """Read what torchrun sets, and everything that speaks like it (Ray, a shell script).

    >>> torchrun(dict(RANK="1", WORLD_SIZE="4", LOCAL_RANK="1", MASTER_ADDR="n0", MASTER_PORT="29500")).rank
    1
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    return _torch_style("torchrun", environ)


def slurm(environ: Variables) -> Environment | None:
    """Read what ``srun`` sets for each task of a step of several; an interactive shell is no such
    task.

    A batch script is none either, though it has some of these variables; what it starts without
    srun is on its own. Processes of ``mpirun`` inherit them, and know better.

    >>> task = dict(SLURM_PROCID="3", SLURM_NTASKS="4", SLURM_NODELIST="gpu[07-08]", SLURM_TASKS_PER_NODE="2(x2)")
    >>> found = slurm(task | dict(SLURM_NODEID="1", SLURM_LOCALID="1", SLURM_JOB_ID="12345", SLURM_STEP_ID="0"))
    >>> found.main_address, found.local_world_size
    ('gpu07', 2)
    """
    if "SLURM_PROCID" not in environ or any(name in environ for name in _MPIRUN):
        return None
    tasks = _number(
        "slurm", environ, "SLURM_STEP_NUM_TASKS", _number("slurm", environ, "SLURM_NTASKS", 1)
    )
    if tasks == 1 or environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return None
    if "SLURM_STEP_ID" not in environ:
        warnings.warn(_NO_SRUN.format(tasks), stacklevel=2)
        return None
    node = _number("slurm", environ, "SLURM_NODEID", 0)
    hosts = (
        environ.get("SLURM_STEP_NODELIST")
        or environ.get("SLURM_NODELIST")
        or environ.get("SLURM_JOB_NODELIST", "")
    )
    job = _number("slurm", environ, "SLURM_JOB_ID", 0)
    return Environment(
        launcher="slurm",
        rank=_number("slurm", environ, "SLURM_PROCID"),
        world_size=tasks,
        local_rank=_number("slurm", environ, "SLURM_LOCALID", 0),
        local_world_size=_tasks_on(node, environ, tasks),
        node_rank=node,
        main_address=environ.get("MASTER_ADDR") or _first_host(hosts),
        main_port=_number("slurm", environ, "MASTER_PORT", 15000 + job % 10000),
    )


_MPIRUN = (
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "MPI_LOCALRANKID",
)  # set by mpirun alone, not by srun --mpi
_NO_SRUN = (
    "SLURM has a job of {} tasks here, but srun has not started this process: it is not one of "
    "them\n"
    "Do:     start it by srun, mpirun or torchrun, or ask SLURM for one task."
)


def lsf(environ: Variables) -> Environment | None:
    """Read what ``jsrun`` of IBM's LSF sets; rank 0 is on the first machine of the rank file after
    the launcher's.

    >>> lsf({}) is None
    True
    """
    if "JSM_NAMESPACE_RANK" not in environ or "JSM_NAMESPACE_SIZE" not in environ:
        return None
    rank = _number("lsf", environ, "JSM_NAMESPACE_RANK")
    world_size = _number("lsf", environ, "JSM_NAMESPACE_SIZE")
    local = _number("lsf", environ, "JSM_NAMESPACE_LOCAL_RANK", rank)
    local_size = _number("lsf", environ, "JSM_NAMESPACE_LOCAL_SIZE", world_size)
    job = _number("lsf", environ, "LSB_JOBID", 0)
    return Environment(
        launcher="lsf",
        rank=rank,
        world_size=world_size,
        local_rank=local,
        local_world_size=local_size,
        node_rank=rank // local_size,
        main_address=environ.get("MASTER_ADDR") or _rank_file_host(environ),
        main_port=_number("lsf", environ, "MASTER_PORT", 10000 + job % 1000),
    )


def mpi(environ: Variables) -> Environment | None:
    """Read what Open MPI, MPICH's and Intel's PMI, and MVAPICH set for the processes of ``mpirun``.

    None of them names the machine of rank 0. On one machine that is this one; on several the
    address is left empty, unless ``MASTER_ADDR`` says it, and is exchanged through MPI when the
    ranks join.

    >>> mpi(dict(PMI_RANK="1", PMI_SIZE="2")).launcher
    'mpi'
    """
    for names in _MPI:
        if names[0] in environ and names[1] in environ:
            rank, world_size = (_number("mpi", environ, name) for name in names[:2])
            local = _number("mpi", environ, names[2], rank)
            local_size = _number("mpi", environ, names[3], world_size)
            here = "127.0.0.1" if local_size == world_size else ""
            return Environment(
                launcher="mpi",
                rank=rank,
                world_size=world_size,
                local_rank=local,
                local_world_size=local_size,
                node_rank=rank // local_size,
                main_address=environ.get("MASTER_ADDR") or here,
                main_port=_number("mpi", environ, "MASTER_PORT", _PORT),
            )
    return None


_MPI = (
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    (
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def _torch_style(launcher: str, environ: Variables) -> Environment:
    rank = _number(launcher, environ, "RANK")
    world_size = _number(launcher, environ, "WORLD_SIZE")
    node = "GROUP_RANK" if "GROUP_RANK" in environ else "NODE_RANK"
    if launcher != "distmetrics" and "MASTER_ADDR" not in environ:
        raise ConfigurationError(
            "RANK and WORLD_SIZE are set, but MASTER_ADDR is not: ranks cannot find each other",
            do="start the job by torchrun, or set MASTER_ADDR and MASTER_PORT too, or unset both.",
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


def _number(launcher: str, environ: Variables, name: str, default: int | None = None) -> int:
    text = environ.get(name, "" if default is None else str(default))
    if not text.strip().lstrip("-").isdigit():
        raise ConfigurationError(f"{launcher} set {name}={text!r}, which is no number")
    return int(text)


def _first_host(hosts: str) -> str:
    """Return the first machine of SLURM's list: ``a[01-03,7],b`` begins with ``a01``.

    Raises:
        ConfigurationError: there is none.
    """
    found = re.match(r"([^,\[\]]+)(?:\[([^,\]\-]+)[^\]]*\]([^,\[]*))?", hosts)
    if found is None:
        raise ConfigurationError(
            f"slurm set no list of machines that we can read: {hosts!r}",
            do="set MASTER_ADDR to rank 0's machine.",
        )
    return "".join(part or "" for part in found.groups())


def _tasks_on(node: int, environ: Variables, tasks: int) -> int:
    """Return the number of tasks on a machine: SLURM writes ``2(x3),1`` for three machines of two
    and one of one.
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
    if path is None or not Path(path).is_file():
        raise ConfigurationError(
            f"lsf names no machine for rank 0: LSB_DJOB_RANKFILE is {path!r}",
            do="set MASTER_ADDR to its name.",
        )
    hosts = Path(path).read_text().split()
    if not hosts:
        raise ConfigurationError(
            f"lsf's rank file {path} is empty", do="set MASTER_ADDR to rank 0's machine."
        )
    return next((host for host in hosts if host != hosts[0]), hosts[0])
