"""A rank is guarded from when its process group stands, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import distmetrics
from distmetrics import guard
from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.testing import run
from tests.acceptance import free_port

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


def guards() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "distmetrics guard"]


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("how", "mode", "threads"),
    [
        ("by name", "on", ["distmetrics guard"]),
        ("mesh", "on", ["distmetrics guard"]),
        ("by name", "off", []),
    ],
)
def test_an_import_begins_nothing_and_a_process_group_begins_the_guard(
    how: str, mode: str, threads: list[str], tmp_path: Path
) -> None:
    """However the group is made, and though the launcher's variables are there before it."""
    (tmp_path / "job.py").write_text(JOB)
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    env |= {"DISTMETRICS_GUARD": mode, "OMP_NUM_THREADS": "1", "LOCAL_RANK": "0"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "job.py", how], cwd=tmp_path, env=env | {"RANK": rank}, stdout=subprocess.PIPE, text=True
        )
        for rank in "01"
    ]
    try:
        assert [rank.communicate(timeout=60)[0] for rank in ranks] == [f"{threads}\n"] * 2
    finally:
        for rank in ranks:
            rank.kill()


class Threads(Dataset[Any]):
    """A data set whose sample is the number of guards in the process that reads it."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return len(guards())


def guards_of_children(comm: Any) -> tuple[int, list[int]]:
    loaders = [DataLoader(Threads(), num_workers=1, multiprocessing_context=how) for how in ("fork", "spawn")]
    return len(guards()), [int(batch) for loader in loaders for batch in loader]


@pytest.mark.gloo
def test_no_child_of_a_rank_is_guarded() -> None:
    """Workers of a loader inherit the group, or the launcher's variables."""
    assert run(2, guards_of_children, backend="gloo") == [(1, [0, 0])] * 2


def with_late_settings(rank: int, path: str) -> tuple[str, float, str]:
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    try:
        with guard.use_settings(mode="warn", timeout=7):
            distmetrics.barrier()
        made: Any = GroupCommunicator.of(dist.group.WORLD).watcher
        return made.settings.mode, made.settings.timeout, str(guards())
    finally:
        dist.destroy_process_group()


@pytest.mark.gloo
def test_settings_are_those_of_the_first_communicator(tmp_path: Path) -> None:
    """The guard is there before it."""
    with get_context("forkserver").Pool(2) as pool:
        path = str(tmp_path / "store")
        found = pool.starmap_async(with_late_settings, [(0, path), (1, path)], chunksize=1).get(60)
    assert found == [("warn", 7, "['distmetrics guard']")] * 2
