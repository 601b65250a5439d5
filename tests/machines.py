"""Two machines on one: network namespaces that reach each other over a cable of their own, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
ADDRESSES = ("10.77.0.1", "10.77.0.2")


@contextmanager
def two_machines() -> Iterator[tuple[str, str]]:
    """Make two namespaces, each with an end of a virtual cable; yields their names.

    Skips the test where this process may not make any.
    """
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need the command `ip` and the rights of root")
    mark = uuid.uuid4().hex[:6]
    names = (f"dm{mark}a", f"dm{mark}b")
    with ExitStack() as stack:
        for name in names:
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
            if made.returncode:
                pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
            stack.callback(_ip, "netns", "del", name)
        _ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])  # goes with its namespace
        for name, address in zip(names, ADDRESSES, strict=True):
            _ip("link", "set", name, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            _ip("-n", name, "link", "set", name, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names


def torchrun(names: Sequence[str], module: str, *arguments: str, ranks: int = 2, timeout: float = 150) -> list[str]:
    """Run ``python -m module`` under torchrun on both machines, ``ranks`` processes each; returns what each printed.

    Raises:
        AssertionError: a machine's torchrun failed.
    """
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), environ.get("PYTHONPATH", "")])}
    started = []
    for node, name in enumerate(names):
        command = [
            *("ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes=2", f"--node-rank={node}", f"--nproc-per-node={ranks}"),
            *(f"--master-addr={ADDRESSES[0]}", "--master-port=29400"),  # nobody else is in these namespaces
            *("-m", module, *arguments),
        ]
        started.append(
            subprocess.Popen(
                command,
                env=environ | {"GLOO_SOCKET_IFNAME": name},
                cwd=ROOT,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
    try:
        printed = [process.communicate(timeout=timeout)[0] for process in started]
    finally:
        for process in started:
            _end(process)
    for process, text in zip(started, printed, strict=True):
        assert process.returncode == 0, text
    return printed


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a torchrun that still runs, and its ranks, which are in sessions of their own."""
    if process.poll() is None:
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.kill()
    process.wait()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
