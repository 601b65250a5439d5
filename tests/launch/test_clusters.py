"""Who a process is under the schedulers of clusters, by the variables that they set."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from distmetrics.errors import ConfigurationError, MissingDependencyError
from distmetrics.launch.environment import ClusterEnvironment, Environment, detect, reachable

SLURM = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_JOB_NAME": "train.sh",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "7",
    "SLURM_NODELIST": "gpu[07-08,11]",
    "SLURM_TASKS_PER_NODE": "4,2,1",
}
LSF = {
    "JSM_NAMESPACE_RANK": "3",
    "JSM_NAMESPACE_SIZE": "4",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "2",
    "LSB_JOBID": "98765",
}
OMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
KUBEFLOW = {
    "KUBERNETES_PORT": "tcp://10.0.0.1:443",
    "RANK": "2",
    "WORLD_SIZE": "3",
    "MASTER_ADDR": "job-master-0",
    "MASTER_PORT": "23456",
}


def place(found):
    return found.rank, found.world_size, found.local_rank, found.local_world_size, found.node_rank


def test_slurm():
    found = detect(SLURM)
    assert (found.launcher, *place(found)) == ("slurm", 5, 7, 1, 2, 1)
    assert (found.main_address, found.main_port) == ("gpu07", 15000 + 4567)
    assert detect(SLURM | {"MASTER_ADDR": "head", "MASTER_PORT": "1234"}).main_address == "head"


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node3", "node3"),
        ("a1,b2", "a1"),
        ("gpu-a[001-004,7],gpu-b1", "gpu-a001"),
        ("rack1-n[3,5]", "rack1-n3"),
        ("n[10-12]-ib,other", "n10-ib"),
    ],
)
def test_the_first_machine_of_slurms_list(hosts, first):
    assert detect(SLURM | {"SLURM_NODELIST": hosts}).main_address == first
    assert detect(SLURM | {"SLURM_STEP_NODELIST": hosts}).main_address == first


@pytest.mark.parametrize(
    ("text", "node", "count"), [("2(x3),1", 3, 1), ("2(x3),1", 2, 2), ("4", 0, 4), ("", 0, 7), ("1(x2)", 5, 7)]
)
def test_slurms_tasks_of_a_machine(text, node, count):
    change = {"SLURM_TASKS_PER_NODE": text, "SLURM_NODEID": str(node), "SLURM_LOCALID": "0"}
    assert detect(SLURM | change).local_world_size == count


@pytest.mark.parametrize(
    "change", [{"SLURM_JOB_NAME": "bash"}, {"SLURM_JOB_NAME": "interactive"}, {"SLURM_NTASKS": "1"}]
)
def test_an_interactive_shell_of_slurm_is_no_part_of_a_job(change):
    assert detect(SLURM | change) is None


def test_a_step_may_have_fewer_tasks_than_its_job():
    step = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2", "SLURM_STEP_TASKS_PER_NODE": "1,2"}
    assert place(detect(SLURM | step)) == (2, 3, 1, 2, 1)
    assert detect(SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None


def test_what_a_batch_script_starts_without_srun_is_no_task():
    batch = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"} | {"SLURM_PROCID": "0"}
    with pytest.warns(UserWarning, match=r"a job of 7 tasks here, but srun has not started(.|\n)*by srun, mpirun or"):
        assert detect(batch) is None


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "0"}])  # in the batch script, and by its daemon elsewhere
@pytest.mark.parametrize("mpirun", ["ompi", "mv2", "hydra"])
def test_mpirun_in_a_job_of_slurm_knows_better(step, mpirun):
    hydra = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    mv2 = {name.replace("OMPI", "MV2"): value for name, value in OMPI.items()}
    variables = {"ompi": OMPI, "mv2": mv2, "hydra": hydra}[mpirun]
    job = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"} | {"SLURM_PROCID": "0"}
    found = detect(job | step | variables)
    assert (found.launcher, *place(found)) == ("mpi", 3, 4, 1, 2, 1)


def test_srun_that_speaks_pmi_is_slurm():
    assert detect(SLURM | {"PMI_RANK": "5", "PMI_SIZE": "7", "PMIX_RANK": "5"}).launcher == "slurm"


def test_slurm_without_machines(monkeypatch):
    found = detect({name: value for name, value in SLURM.items() if name != "SLURM_NODELIST"})
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingDependencyError, match="slurm without MASTER_ADDR"):
        reachable(found)


def test_lsf(tmp_path):
    hosts = tmp_path / "rankfile"
    hosts.write_text("batch1\nnode5\nnode5\nnode6\nnode6\n")
    found = detect(LSF | {"LSB_DJOB_RANKFILE": str(hosts)})
    assert (found.launcher, *place(found)) == ("lsf", 3, 4, 1, 2, 1)
    assert (found.main_address, found.main_port) == ("node5", 10765)
    hosts.write_text("node5\nnode5\n")
    assert detect(LSF | {"LSB_DJOB_RANKFILE": str(hosts)}).main_address == "node5"
    hosts.write_text("")
    assert detect(LSF | {"LSB_DJOB_RANKFILE": str(hosts)}).main_address == ""
    assert detect(LSF).main_address == ""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (OMPI, (3, 4, 1, 2, 1)),
        ({name.replace("OMPI", "MV2"): value for name, value in OMPI.items()}, (3, 4, 1, 2, 1)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (3, 4, 1, 2, 1)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, (3, 4, 3, 4, 0)),
    ],
)
def test_mpi(variables, expected):
    found = detect(variables)
    assert (found.launcher, *place(found)) == ("mpi", *expected)


def test_mpi_on_one_machine_needs_no_address():
    found = detect(OMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    assert reachable(found) is found
    assert (found.main_address, found.main_port) == ("127.0.0.1", 29500)


def test_mpi_on_several_machines_asks_for_the_address(monkeypatch):
    found = detect(OMPI)
    assert found.main_address == ""
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingDependencyError, match=r"mpi without MASTER_ADDR(.|\n)*pip install mpi4py"):
        reachable(found)
    world = SimpleNamespace(bcast=lambda mine, root: "node0")
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=world)))
    assert (reachable(found).main_address, reachable(found).main_port) == ("node0", 29500)
    assert reachable(detect(OMPI | {"MASTER_ADDR": "head"})).main_address == "head"


def test_kubeflow_runs_a_process_a_pod():
    found = detect(KUBEFLOW)
    assert (found.launcher, *place(found)) == ("kubeflow", 2, 3, 0, 1, 2)
    assert (found.main_address, found.main_port) == ("job-master-0", 23456)


def test_torchrun_inside_a_pod_or_a_job_knows_better():
    local = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    found = detect(KUBEFLOW | SLURM | OMPI | local)
    assert (found.launcher, *place(found)) == ("torchrun", 2, 3, 1, 2, 0)


class Mine(ClusterEnvironment):
    """A cluster of one's own."""

    world_size = 4
    main_address = "head"
    main_port = 4711

    @property
    def rank(self):
        return 3


def test_an_environment_of_ones_own():
    found = Environment.of(Mine())
    assert (found.launcher, *place(found)) == ("Mine", 3, 4, 0, 1, 3)

    class Wrong(Mine):
        rank = 4

    with pytest.raises(ConfigurationError, match="Wrong says rank 4 in a world of 4"):
        Environment.of(Wrong())


class Guides(ClusterEnvironment):
    """As an older guide has it: properties, a method, and no rank."""

    @property
    def main_address(self):
        return "head"

    @property
    def main_port(self):
        return 4711

    def world_size(self):
        return 4


class Older(ClusterEnvironment):
    """All of an older interface."""

    def master_address(self):
        return "head"

    def master_port(self):
        return 4711

    def world_size(self):
        return 4

    def global_rank(self):
        return 3

    def local_rank(self):
        return 1

    local_world_size = 2


def test_an_environment_with_methods():
    class Ranked(Guides):
        def rank(self):
            return 3

    assert place(Environment.of(Ranked())) == (3, 4, 0, 1, 3)
    assert place(Environment.of(Older())) == (3, 4, 1, 2, 1)
    assert Environment.of(Older()).main_address == "head"


def test_an_environment_without_a_rank():
    with pytest.raises(ConfigurationError, match=r"(?s)^Guides .* does not say rank\n.*Do:     def rank\(self\)"):
        Guides()

    class Half(ClusterEnvironment):
        rank = 0

    with pytest.raises(ConfigurationError, match=r"Half .* does not say world_size, main_address, main_port"):
        Half()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
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
