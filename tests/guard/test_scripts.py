"""The guard in a process group that the user's script has made: the store lives in rank 0."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from distmetrics.cli.postmortem import describe, merge, read
from tests.acceptance import ROOT, free_port
from tests.programs import Program

SCRIPT = str(ROOT / "tests/guard/script.py")
pytestmark = [
    pytest.mark.gloo,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.name != "posix", reason="signals of POSIX, and forks"),
]


def ended(
    *arguments: str, script: str = SCRIPT, last: int | None = None, fresh: bool = False, **variables: str
) -> list[tuple[int, str, str]]:
    """Run a script as two ranks, or more; return exit code, stdout and stderr of each.

    ``last``: the rank that is waited for after the others; it is killed then.
    """
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    environ = os.environ | environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"} | variables
    ranks = range(int(environ["WORLD_SIZE"]))
    started = []
    for rank in ranks:
        own = environ | {"RANK": str(rank)}
        started.append(Program([script, *arguments], cwd=ROOT, env=own, fresh=fresh))
    done = {}
    try:
        for rank in sorted(ranks, key=lambda rank: rank == last):
            if rank == last:
                started[rank].kill()
            done[rank] = started[rank].end(timeout=90)
    finally:
        for process in started:
            process.kill()
    return [(done[rank].returncode, done[rank].stdout, done[rank].stderr) for rank in ranks]


JOB = """
import sys, threading
from torch.distributed import destroy_process_group, init_process_group as init
import distmetrics, psutil, torch.distributed as dist
def now():
    names = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    return sorted(name for name in names if name.startswith("distmetrics"))
def connections():
    return len([each for each in psutil.Process().net_connections() if each.raddr])
assert (now(), connections()) == ([], 0)
if sys.argv[1] == "by name":
    from torch.distributed import init_process_group as init
elif sys.argv[1] == "mesh":
    init = lambda _: dist.device_mesh.init_device_mesh("cpu", (2,))
init("gloo")
print(now())
dist.barrier()
"""


@pytest.mark.parametrize(("how", "mode"), [("by name", "on"), ("mesh", "on"), ("by name", "off")])
def test_an_import_begins_nothing_and_a_process_group_begins_the_guard(how: str, mode: str, tmp_path: Path) -> None:
    """However the group is made, and though the launcher's variables are there before it."""
    (tmp_path / "job.py").write_text(JOB)
    threads = "['distmetrics guard']\n" if mode == "on" else "[]\n"
    job, fresh = str(tmp_path / "job.py"), mode == "on" and how == "by name"  # once from the import on
    for _, out, err in ended(how, script=job, fresh=fresh, DISTMETRICS_GUARD=mode, LOCAL_RANK="0"):
        assert out == threads, err


@pytest.mark.parametrize("what", ["nothing", "no goodbye"])
def test_a_job_that_ends_well_says_nothing(what: str) -> None:
    """No page of C++ about a store that ended with rank 0, whether or not the script destroys its group."""
    for rank, (code, out, err) in enumerate(ended(what, "1")):
        assert (code, out) == (0, f"rank {rank} is done\n"), err
        assert "TCPStore" not in err
        assert "terminate called" not in err


@pytest.mark.parametrize(
    ("what", "kind", "said", "bad"),
    [
        ("returns", "DivergedError", "rank 0 has returned, and others still wait for it", 0),
        ("is killed", "PeerLostError", "rank 0  its process is gone", 0),
        ("is gone before the first call", "PeerLostError", "rank 1  its process is gone", 1),
        # Nobody has read who it is, and it hosted the store.
        ("is gone before the first call", "PeerLostError", "the connection to another rank broke", 0),
    ],
)
def test_who_is_lost_is_named(what: str, kind: str, said: str, bad: int) -> None:
    """Also rank 0, and the store with it."""
    code, out, err = ended(what, str(bad), last=bad)[1 - bad]
    assert code == 1, err
    assert f"rank {1 - bad} raised {kind}" in out, (out, err)
    assert said in out, (out, err)


def test_the_verdict_outlives_the_store() -> None:
    """Rank 0, which hosts the store, ends by the error as soon as it is raised; rank 2 has read it by then."""
    found = ended("is busy", "1", last=1, WORLD_SIZE="3", DISTMETRICS_TIMEOUT="2")
    for code, out, err in (found[0], found[2]):
        assert code == 1, err
        assert "raised DivergedError" in out, (out, err)
        assert "rank 1 did not come to a collective within 2 s" in out


def test_what_the_backend_refuses_is_no_broken_connection() -> None:
    """Torch's own error, at once; the next call works.

    Who ends by it alone has not come to the call in which the other waits, which is told so.
    """
    (_, out, err), (failed, other, _) = ended("is_refused", DISTMETRICS_TIMEOUT="60")
    for each in (out, other):
        assert each.startswith("RuntimeError: "), each
        assert "only works with ReduceOp.SUM" in each
    assert "raised PeerLostError: rank 1 failed and will never answer" in out, err
    assert "raised RuntimeError" in out
    assert failed == 1


def test_a_folder_that_cannot_be_written_hides_no_error() -> None:
    """The verdict is raised all the same, and the log says what is wrong with the folder."""
    _, out, err = ended("raises_alone", DISTMETRICS_REPORT=str(Path(__file__) / "reports"))[0]
    assert "raised PeerLostError: rank 1 failed and will never answer" in out, err
    assert "rank 0 can't write its report" in err
    assert "Traceback" not in err


# --- reports --------------------------------------------------------------------------------------------------------


def reports(folder: Path) -> dict[int, dict[str, Any]]:
    return {int(file.stem.removeprefix("rank-")): json.loads(file.read_text()) for file in sorted(folder.glob("*"))}


def test_a_mismatch_is_reported_by_every_rank(tmp_path: Path) -> None:
    """Also where the script catches it and ends by itself."""
    ended("caught", DISTMETRICS_REPORT=str(tmp_path / "left"))
    assert [each["error"]["kind"] for each in reports(tmp_path / "left").values()] == ["MismatchError"] * 2
    assert "ranks 0-1 raised MismatchError at tests/guard/script.py" in describe(merge(read(tmp_path / "left")))


@pytest.mark.parametrize("what", ["terminated", "terminated_in_torch"])
def test_sigterm_ends_a_rank_as_it_would_have(what: str, tmp_path: Path) -> None:
    """After its report, and at once, by the exit code that shells have for it; without a folder nothing is handled."""
    code, out, err = ended(what, DISTMETRICS_REPORT=str(tmp_path / "left"))[0]
    assert (code, out) == (143, ""), err
    assert f"in {what}" in reports(tmp_path / "left")[0]["where"][0]
    assert what != "terminated" or ended(what)[0][:2] == (-15, "")


def test_a_handler_of_the_users_decides_what_becomes_of_the_process(tmp_path: Path) -> None:
    for rank, (code, out, err) in enumerate(ended("own_handler", DISTMETRICS_REPORT=str(tmp_path / "left"))):
        assert (code, out) == (0, f"the user's handler\nrank {rank} is done\n"), err
    assert [*reports(tmp_path / "left")] == [0, 1]


def test_the_end_of_a_forked_child_is_not_that_of_the_rank(tmp_path: Path) -> None:
    """It has a copy of the guard, and inherits the handler: it must not say goodbye for the rank, nor report."""
    for rank, (code, out, err) in enumerate(ended("forks", DISTMETRICS_REPORT=str(tmp_path / "left"))):
        assert (code, out) == (0, f"the children ended with [0, -15]\nrank {rank} is done\n"), err
    assert not (tmp_path / "left").exists()
