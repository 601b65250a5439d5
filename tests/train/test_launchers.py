"""The trainer in processes that a cluster's launcher starts: by the variables of each, and under a real mpirun."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import pytest

from tests.programs import Program
from tests.train.test_ddp import MODULE, ROOT, check

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(180)]
LAUNCHERS = {
    "slurm": {
        "SLURM_PROCID": "{rank}",
        "SLURM_LOCALID": "{rank}",
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_ID": "7",
        "SLURM_NODELIST": "localhost",
        "SLURM_TASKS_PER_NODE": "2",
    },
    "lsf": {
        "JSM_NAMESPACE_RANK": "{rank}",
        "JSM_NAMESPACE_SIZE": "2",
        "JSM_NAMESPACE_LOCAL_RANK": "{rank}",
        "JSM_NAMESPACE_LOCAL_SIZE": "2",
        "LSB_JOBID": "7",
        "LSB_DJOB_RANKFILE": "{folder}/hosts",
    },
    "mpi": {
        "OMPI_COMM_WORLD_RANK": "{rank}",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
}
OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")


def environ(tmp_path, variables=None, rank=0):
    with_rank = {name: text.format(rank=rank, folder=tmp_path) for name, text in (variables or {}).items()}
    plain = {name: value for name, value in os.environ.items() if name not in OURS}
    return plain | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | with_rank


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_variables_of_a_cluster(launcher, tmp_path):
    (tmp_path / "hosts").write_text("localhost\nlocalhost\n")
    variables = LAUNCHERS[launcher] | {"MASTER_PORT": free_port()}
    ranks = [Program([*MODULE, tmp_path], cwd=ROOT, env=environ(tmp_path, variables, rank)) for rank in range(2)]
    try:
        ends = [rank.end(timeout=150) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [end.returncode for end in ends] == [0, 0], ends
    check(tmp_path)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs an mpirun")
def test_under_mpirun(tmp_path):
    allowed = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    command = ["mpirun", "-n", "2", sys.executable, *MODULE, str(tmp_path)]
    variables = allowed | {"MASTER_PORT": free_port()}
    run = environ(tmp_path, variables)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=run, timeout=150)
    assert done.returncode == 0, done.stderr
    check(tmp_path)
