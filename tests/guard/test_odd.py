"""What is not the guard's to blame, or must not break it: in a process group that the user's script has made."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]


def ended(what: str, **more: str) -> list[tuple[int, str, str]]:
    """Run the script on two ranks; return exit code, stdout and stderr of each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    variables |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", **more}
    command = [sys.executable, str(ROOT / "tests/guard/odd.py"), what]
    started = [
        subprocess.Popen(
            command, env=variables | {"RANK": str(rank)}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for rank in range(2)
    ]
    try:
        return [(process.returncode, *told) for process in started for told in [process.communicate(timeout=90)]]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_the_end_of_a_forked_child_is_not_that_of_the_rank() -> None:
    """The child has a copy of the guard: it must not say goodbye for the rank."""
    for code, out, err in ended("forks"):
        assert (code, out) == (0, "done\n"), err


def test_what_the_backend_refuses_is_no_broken_connection() -> None:
    """Torch's own error, at once; the next call works."""
    for code, out, err in ended("is refused"):
        assert code == 0, err
        assert out.startswith("RuntimeError: "), out
        assert "only works with ReduceOp.SUM" in out
        assert out.endswith("done\n")


def test_a_call_that_is_refused_on_one_rank_was_not_made() -> None:
    """Who ends by it has not come to the call in which the other waits, which is told so."""
    (code, out, err), (failed, _, _) = ended("is refused alone", DISTMETRICS_TIMEOUT="60")
    assert code == 0, err
    assert "rank 1 failed and will never answer" in out
    assert "raised RuntimeError" in out
    assert failed == 1


def test_a_folder_that_cannot_be_written_hides_no_error() -> None:
    """The verdict is raised all the same, and the log says what is wrong with the folder."""
    code, out, err = ended("raises alone", DISTMETRICS_REPORT=str(Path(__file__) / "reports"))[0]
    assert code == 0, err
    assert "PeerLostError: rank 1 failed and will never answer" in out
    assert "rank 0 can't write its report" in err
    assert "Traceback" not in err
