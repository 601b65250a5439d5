"""Two launchers of one process each, as on two machines; both are this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.strategies.common import assert_same, outcome, single

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.gloo, pytest.mark.timeout(300)]


def test_under_torchrun(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    script = ["-m", "tests.strategies.script", str(tmp_path)]
    machines = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *where, "--node-rank", str(node), *script],
            cwd=ROOT,
            env={**environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    try:
        said = [machine.communicate(timeout=250)[1] for machine in machines]
    finally:
        for machine in machines:
            machine.kill()
            machine.wait()
    assert [machine.returncode for machine in machines] == [0, 0], "\n".join(said)
    for rank in range(2):
        for found, node in torch.load(tmp_path / f"rank{rank}.pt").values():
            assert node == rank
            assert_same(found, outcome(*single()))
