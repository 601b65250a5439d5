"""What ranks do in the tests of the launcher; light to import, since every process imports it."""

from __future__ import annotations

import os
import signal
import sys
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


def hello(comm: Any, word: str) -> tuple[str, int, int, int, bool]:
    assert current() is comm
    assert GroupCommunicator.of(dist.group.WORLD) is comm
    return word, comm.rank, comm.world_size, os.getpid(), dist.is_initialized()


def subgroup(comm: Any) -> Any:
    group = dist.new_group([0, 2])
    if comm.rank == 1:
        return None
    sub = GroupCommunicator(group)
    return (
        sub.rank,
        sub.world_size,
        int(sub.all_reduce(torch.tensor(comm.rank), "sum")),
        sub.broadcast(torch.tensor(comm.rank), 1).item(),
    )


def raises(comm: Any, error: BaseException, bad: int = 0) -> None:
    if comm.rank == bad:
        raise error
    comm.barrier()


def raises_needs_two(comm: Any) -> None:
    raise NeedsTwoError("a", "b")


def returns(comm: Any, kind: str) -> Any:
    made = {
        "lock": threading.Lock,
        "tensor": lambda: torch.ones(2, requires_grad=True) * 2,
        "large": lambda: torch.zeros(3_000_000),
        "none": lambda: None,
    }
    return made[kind]()


def exits(comm: Any, code: int) -> None:
    sys.exit(code)


def dies_before_the_first_call(comm: Any, bad: int) -> None:
    if comm.rank == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def dies_between_calls(comm: Any, bad: int, how: str) -> str:
    """The survivors catch the error, and say what they were told."""
    for step in range(5):
        if comm.rank == bad and step == 3:
            os._exit(0) if how == "exit 0" else os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.all_gather(torch.ones(100_000))
        except DistmetricsError as error:
            return f"{type(error).__name__} {error.peers} at step {step}"
    return "all steps"


def leaves_a_thread(comm: Any) -> int:
    """A rank with a thread that never ends must still end."""
    threading.Thread(target=time.sleep, args=(3600,), daemon=False).start()
    raise KeyError("the thread sleeps on")


def starts_a_child(comm: Any) -> None:
    comm.barrier()
    if comm.rank == 1:
        raise KeyError("first")
    time.sleep(3600)  # deaf: in no collective of ours
