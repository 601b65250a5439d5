"""What ranks do in the tests of the launcher; light to import, since every process imports it."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from distmetrics import DistmetricsError, current
from distmetrics.comm.process_group import GroupCommunicator


class NeedsTwoError(Exception):
    """Pickles, but does not come back."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def hello(comm: Any, word: str) -> tuple[str, int, int, int, Any]:
    assert current() is comm
    assert GroupCommunicator.of(dist.group.WORLD) is comm
    ends = [0, comm.world_size - 1]
    group = dist.new_group(ends)
    return word, comm.rank, comm.world_size, os.getpid(), in_group(comm, group) if comm.rank in ends else None


def in_group(comm: Any, group: Any) -> tuple[int, ...]:
    """Sources in a group count from 0, too."""
    sub = GroupCommunicator(group)
    total = int(sub.all_reduce(torch.tensor(comm.rank), "sum"))
    return sub.rank, sub.world_size, total, int(sub.broadcast(torch.tensor(comm.rank), 1))


ENDS: list[Any] = [  # what each rank returns, or the error that it raises
    lambda: torch.ones(2, requires_grad=True) * 2,
    lambda: torch.zeros(3_000_000),  # larger than a pipe
    lambda: None,
    lambda: {"lock": threading.Lock()},
    lambda: KeyError("lost"),
    lambda: NeedsTwoError("a", "b"),
    lambda: KeyboardInterrupt(),
]


def ends(comm: Any) -> Any:
    made = ENDS[comm.rank]()
    if isinstance(made, BaseException):
        raise made
    return made


def exits(comm: Any) -> None:
    if comm.rank == 0:
        raise SystemExit(0)
    comm.barrier()


def dies(comm: Any, bad: int, how: str, first: int) -> tuple[str, str]:
    """The survivors catch the error, and say what they were told."""
    for step in range(5):
        if comm.rank == bad and step == first:
            os._exit(0) if how == "exit 0" else os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.all_gather(torch.ones(100_000))
        except DistmetricsError as error:
            return f"{type(error).__name__} {error.peers} at step {step}", str(error)
    return "all steps", ""


def is_deaf(comm: Any) -> None:
    """Rank 1 fails, and leaves a thread that never ends; rank 0 is in no collective of ours."""
    comm.barrier()
    if comm.rank == 1:
        threading.Thread(target=time.sleep, args=(3600,), daemon=False).start()
        raise KeyError("first")
    time.sleep(3600)
