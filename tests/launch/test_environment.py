"""Who a process is, by the variables that launchers set or by a user's own class."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.launch.environment import (
    OWN_STORE,
    ClusterEnvironment,
    Environment,
    detect,
    reachable,
)

MASTER = {"MASTER_ADDR": "node0", "MASTER_PORT": "1234"}
LEAST = {"RANK": "1", "WORLD_SIZE": "2"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", **MASTER}
KUBEFLOW = {"KUBERNETES_PORT": "tcp://10.0.0.1:443", "RANK": "2", "WORLD_SIZE": "3", **MASTER}
BATCH = {  # what a batch script of SLURM sees
    "SLURM_JOB_ID": "1234567",
    "SLURM_JOB_NAME": "train.sh",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "7",
    "SLURM_NODELIST": "gpu[07-08,11]",
    "SLURM_TASKS_PER_NODE": "4,2,1",
}
SLURM = BATCH | {"SLURM_STEP_ID": "0", "SLURM_PROCID": "5"}
STEP = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2", "SLURM_STEP_TASKS_PER_NODE": "1,2"}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4"}
LOCAL_HYDRA = HYDRA | {"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def by_suffix(prefix: str) -> dict[str, str]:
    values = {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    return {f"{prefix}_{suffix}": value for suffix, value in values.items()}


OMPI, MV2 = by_suffix("OMPI_COMM_WORLD"), by_suffix("MV2_COMM_WORLD")
LSF = by_suffix("JSM_NAMESPACE") | {"LSB_JOBID": "98765"}
HERE = "127.0.0.1"
IN_MPI = ("mpi", 3, 4, 1, 2, 1, "", 29500)


def place(found: Environment) -> tuple[object, ...]:
    """Launcher, rank, world size, local rank, local world size, node, address, port."""
    return tuple(getattr(found, name) for name in Environment.__slots__)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN | {"GROUP_RANK": "2"}, ("torchrun", 5, 8, 1, 4, 2, "node0", 1234)),
        (TORCHRUN | {"NODE_RANK": "3"}, ("torchrun", 5, 8, 1, 4, 3, "node0", 1234)),  # Ray Train
        (LEAST | MASTER, ("torchrun", 1, 2, 1, 2, 0, "node0", 1234)),  # a shell script
        (LEAST | {OWN_STORE: "/here"}, ("distmetrics", 1, 2, 1, 2, 0, HERE, 29500)),
        (KUBEFLOW, ("kubeflow", 2, 3, 0, 1, 2, "node0", 1234)),
        (SLURM, ("slurm", 5, 7, 1, 2, 1, "gpu07", 19567)),
        (SLURM | MASTER, ("slurm", 5, 7, 1, 2, 1, "node0", 1234)),
        (SLURM | STEP, ("slurm", 2, 3, 1, 2, 1, "gpu07", 19567)),
        (SLURM | HYDRA | {"PMIX_RANK": "5"}, ("slurm", 5, 7, 1, 2, 1, "gpu07", 19567)),
        (LSF, ("lsf", 3, 4, 1, 2, 1, "", 10765)),
        (OMPI, IN_MPI),
        (OMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, ("mpi", 3, 4, 1, 4, 0, HERE, 29500)),
        (MV2, IN_MPI),
        (LOCAL_HYDRA, IN_MPI),
        (HYDRA, ("mpi", 3, 4, 3, 4, 0, HERE, 29500)),
        # Launchers that run inside others know better.
        *[(BATCH | step | mpi, IN_MPI) for step in ({}, SLURM) for mpi in (OMPI, MV2, LOCAL_HYDRA)],
        (
            SLURM | OMPI | KUBEFLOW | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            ("torchrun", 2, 3, 1, 2, 1, "node0", 1234),
        ),
    ],
)
def test_the_place_of_a_process(variables, expected, monkeypatch):
    assert place(detect(variables)) == expected
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert place(detect()) == expected


HOSTS = {"node3": "node3", "a1,b2": "a1", "gpu-a[001-004,7],gpu-b1": "gpu-a001", "rack1-n[3,5]": "rack1-n3"}
HOSTS |= {"n[10-12]-ib,other": "n10-ib"}
TASKS = [("2(x3),1", 3, 1), ("2(x3),1", 2, 2), ("4", 0, 4), ("", 0, 7), ("1(x2)", 5, 7)]


def test_slurms_machines():
    """The first one, and how many tasks each has."""
    for hosts, first in HOSTS.items():
        for name in ("SLURM_NODELIST", "SLURM_STEP_NODELIST"):
            assert detect(SLURM | {name: hosts}).main_address == first
    for text, node, count in TASKS:
        change = {"SLURM_TASKS_PER_NODE": text, "SLURM_NODEID": str(node), "SLURM_LOCALID": "0"}
        assert detect(SLURM | change).local_world_size == count


def test_a_process_outside_of_a_job(monkeypatch):
    alone = [{"SLURM_JOB_NAME": "bash"}, {"SLURM_JOB_NAME": "interactive"}, {"SLURM_NTASKS": "1"}]
    alone.append({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"})
    assert [detect(SLURM | change) for change in alone] == [None] * 4
    assert detect({"HOME": "somewhere"}) is None
    text = r"a job of 7 tasks here, but srun has not started(.|\n)*by srun, mpirun or"
    with pytest.warns(UserWarning, match=text):
        assert detect(BATCH) is None


def test_the_first_host_of_lsfs_file_is_the_launchers(tmp_path):
    hosts = tmp_path / "rankfile"
    for text, first in (("batch1\nnode5\nnode5\nnode6", "node5"), ("node5\nnode5", "node5"), ("", "")):
        hosts.write_text(text)
        assert detect(LSF | {"LSB_DJOB_RANKFILE": str(hosts)}).main_address == first


def test_an_address_that_no_variable_says_is_asked_through_mpi(monkeypatch):
    without = {name: value for name, value in SLURM.items() if name != "SLURM_NODELIST"}
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    for variables, text in ((OMPI, r"mpi without MASTER_ADDR(.|\n)*mpi4py"), (without, "slurm wi")):
        with pytest.raises(MissingDependencyError, match=text):
            reachable(detect(variables))
    known = detect(OMPI | MASTER)
    assert reachable(known) is known
    world = SimpleNamespace(bcast=lambda mine, root: "node0")
    mpi = SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=world))
    monkeypatch.setitem(sys.modules, "mpi4py", mpi)
    assert reachable(detect(OMPI)).main_address == "node0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "8"}, "rank 8 in a world of 8"),
        ({"RANK": "-1"}, "rank -1 in a world of 8"),
        ({"LOCAL_RANK": "4"}, "local rank 4 in a world of 4"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE='many', which is no number"),
        ({"RANK": ""}, "RANK='', which is no number"),
    ],
)
def test_variables_that_make_no_sense(change, message):
    with pytest.raises(ConfigurationError, match=message):
        detect(TORCHRUN | change)
    with pytest.raises(ConfigurationError, match="MASTER_ADDR is not"):
        detect(LEAST)


class Mine(ClusterEnvironment):
    """A cluster of one's own."""

    world_size = 4
    main_address = "head"
    main_port = 4711

    @property
    def rank(self):
        return 3


class Older(ClusterEnvironment):
    """All of an older interface, as methods."""

    local_world_size = 2
    master_address, master_port = (lambda self: "head"), (lambda self: 4711)
    world_size, global_rank = (lambda self: 4), (lambda self: 3)


def test_an_environment_of_ones_own():
    assert place(Environment.of(Mine())) == ("Mine", 3, 4, 0, 1, 3, "head", 4711)
    assert place(Environment.of(Older())) == ("Older", 3, 4, 1, 2, 1, "head", 4711)
    text = r"Half .* does not say world_size, main_address, main_port\n.*def world_size\(self\)"
    with pytest.raises(ConfigurationError, match=text):
        type("Half", (ClusterEnvironment,), {"rank": 0})()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rank", 4, "Odd says rank 4 in a world of 4"),
        ("rank", "3rd", "Odd set rank='3rd', which is no number"),
        ("world_size", None, "Odd set world_size=None, which is no number"),
        ("local_world_size", 0, "local rank 0 in a world of 0"),
        ("local_rank", lambda self: 1, "local rank 1 in a world of 1"),
        ("main_port", "http", "Odd set main_port='http', which is no number"),
    ],
)
def test_an_environment_that_says_something_else(name, value, message):
    with pytest.raises(ConfigurationError, match=message):
        Environment.of(type("Odd", (Mine,), {name: value})())
