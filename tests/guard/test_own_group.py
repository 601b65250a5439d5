"""The guard in a process group that the user's script has made: the store lives in rank 0."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]


def ended(what: str, bad: int = 1) -> list[tuple[int, str, str]]:
    """Run the script on two ranks; return exit code, stdout and stderr of each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    variables |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(ROOT / "tests/guard/script.py"), what, str(bad)]
    started = [
        subprocess.Popen(
            command, env=variables | {"RANK": str(rank)}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    try:
        told = {rank: started[rank].communicate(timeout=90) for rank in (1 - bad,)}
        if what == "is stopped":
            started[bad].send_signal(signal.SIGKILL)
        told[bad] = started[bad].communicate(timeout=30)
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [(started[rank].returncode, *told[rank]) for rank in range(2)]


@pytest.mark.parametrize("what", ["nothing", "no goodbye"])
def test_a_job_that_ends_well_says_nothing(what: str) -> None:
    """No page of C++ about a store that ended with rank 0, whether or not the script destroys its group."""
    for rank, (code, out, err) in enumerate(ended(what)):
        assert (code, out) == (0, f"rank {rank} is done\n"), err
        assert "TCPStore" not in err
        assert "terminate called" not in err


@pytest.mark.parametrize(
    ("what", "kind", "said", "bad"),
    [
        ("returns", "DivergedError", "rank {bad} has returned, and others still wait for it", 0),
        ("raises", "PeerLostError", "rank {bad}  raised ValueError: a bad batch  guard/script.py:", 1),
        ("is killed", "PeerLostError", "rank {bad}  its process is gone", 0),
        pytest.param("is killed", "PeerLostError", "rank {bad}  its process is gone", 1, marks=pytest.mark.long),
        # Nobody has said yet who it is, and where it hosted the store nobody can be asked.
        ("is gone before the first call", "PeerLostError", "the connection to another rank broke", 1),
        pytest.param(
            "is gone before the first call",
            "PeerLostError",
            "the connection to another rank broke",
            0,
            marks=pytest.mark.long,
        ),
    ],
)
def test_who_is_lost_is_named(what: str, kind: str, said: str, bad: int) -> None:
    """Also rank 0, and the store with it."""
    code, out, err = ended(what, bad)[1 - bad]
    assert code == 1, err
    assert f"rank {1 - bad} raised {kind}" in out, (out, err)
    assert said.format(bad=bad) in out.replace("tests/guard", "guard"), (out, err)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (0, "the job's key-value store does not answer"),
        (1, "rank 1 is stopped by a signal (SIGSTOP), and others wait for it"),
    ],
)
def test_a_rank_that_is_stopped(bad: int, said: str) -> None:
    """Where it hosts the store, nobody can be asked any more: that is told."""
    code, out, err = ended("is stopped", bad)[1 - bad]
    assert code == 1, err
    assert said in out, (out, err)
