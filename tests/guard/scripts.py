"""Scripts of the user's own that call init_process_group, as ranks of this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def ended(
    script: str, *args: str, last: int | None = None, stopped: bool = False, world_size: int = 2, **variables: str
) -> list[tuple[int, str, str]]:
    """Run a script of this folder as ranks; return exit code, stdout and stderr of each.

    ``last``: the rank that is waited for after the other, and killed then where it is ``stopped``.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
    environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", **variables}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests/guard" / script), *args],
            env=environ | {"RANK": str(rank)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(world_size)
    ]
    texts = {}
    try:
        for rank in sorted(range(world_size), key=lambda rank: rank == last):
            if rank == last and stopped:
                ranks[rank].send_signal(signal.SIGKILL)
            texts[rank] = ranks[rank].communicate(timeout=90)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [(ranks[rank].returncode, *texts[rank]) for rank in range(world_size)]
