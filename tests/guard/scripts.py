"""Scripts of the user's own that call init_process_group, as ranks of this machine."""

from __future__ import annotations

import os
import signal
import socket

from tests import warm
from tests.warm import ROOT

SCRIPT = str(ROOT / "tests/guard/script.py")


def ended(
    what: str, *args: str, last: int | None = None, world_size: int = 2, **variables: str
) -> list[tuple[int, str, str]]:
    """Run the script as ranks; return exit code, stdout and stderr of each.

    ``last``: the rank that is waited for after the others; it is killed then.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
    environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", **variables}
    ranks = [warm.Process(SCRIPT, what, *args, env=environ | {"RANK": str(rank)}) for rank in range(world_size)]
    texts = {}
    try:
        for rank in sorted(range(world_size), key=lambda rank: rank == last):
            if rank == last:
                ranks[rank].send_signal(signal.SIGKILL)
            texts[rank] = ranks[rank].communicate(timeout=90)
    finally:
        for process in ranks:
            process.kill()
    return [(ranks[rank].wait(), *texts[rank]) for rank in range(world_size)]
