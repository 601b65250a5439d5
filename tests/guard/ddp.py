"""A plain training loop of DistributedDataParallel, in which ranks call us, or one of them does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import distmetrics as dm

STEPS, FAULTY = 4, 2


def loop(comm: Any, what: str, wraps: bool = True) -> float:
    """Train; return the seconds since the faulty step began."""
    torch.manual_seed(0)
    slow = Slow(what, comm.rank)
    net = nn.Sequential(nn.Linear(8, 8), slow, nn.Linear(8, 1))
    model = DistributedDataParallel(net) if wraps else net
    began = time.monotonic()
    for step in range(STEPS):
        slow.armed = step == FAULTY
        if slow.armed:
            began = time.monotonic()
            BEFORE.get(what, _nothing)(comm)
        loss = model(torch.ones(4, 8)).mean()
        if not (what == "skips" and comm.rank == 1 and slow.armed):
            dm.mean(loss.detach(), weight=4)  # distlint: ignore[DL101] what this is about
        if what == "calls alone" and comm.rank == 1 and slow.armed:
            dm.barrier(name="which rank 1 alone calls")  # distlint: ignore[DL101] what this is about
        loss.backward()
    return time.monotonic() - began


def loops(comm: Any, wraps: bool) -> list[float]:
    """Train once for each way to take one's time, and return how long the longest step was."""
    ways = ["computes in backward", "sleeps in backward", *BEFORE]
    return [comm.all_reduce(torch.tensor(loop(comm, what, wraps)), "max").item() for what in ways]


class Slow(nn.Module):
    """Passes its input on; its backward pass takes long on rank 1, in one of several ways."""

    def __init__(self, what: str, rank: int) -> None:
        super().__init__()
        self.how = what if rank == 1 else ""
        self.armed = False

    def forward(self, x: Tensor) -> Tensor:
        if self.armed and self.how == "computes in backward":
            return _heavy(x)
        if self.armed and self.how == "sleeps in backward":
            x.register_hook(lambda gradient: time.sleep(1.5))
        return x


def _heavy(x: Tensor) -> Tensor:
    """Return x; its backward pass takes seconds in C code, which no frame of Python shows."""
    product = x.sum() * torch.ones(1000, 1000)
    began = time.monotonic()
    while time.monotonic() - began < 1.5:
        product = product @ torch.full((1000, 1000), 1e-3)
    return x + 0 * product.sum()


def _wait_for_data(comm: Any) -> None:
    if comm.rank == 1:
        time.sleep(1.5)


def _send_between_two(comm: Any) -> None:
    """Messages between ranks 1 and 2, which gloo counts like collectives: rank 0 has none."""
    for _ in range(5):
        if comm.rank == 1:
            dist.send(torch.ones(1), 2)
        elif comm.rank == 2:
            dist.recv(torch.ones(1), 1)
    _wait_for_data(comm)


def _receive_late(comm: Any) -> None:
    """Rank 1 waits for a message of rank 2, which takes its time."""
    if comm.rank == 2:
        time.sleep(1.5)
        dist.send(torch.ones(1), 1)
    elif comm.rank == 1:
        dist.recv(torch.ones(1), 2)


def _nothing(comm: Any) -> None:
    pass


BEFORE: dict[str, Callable[[Any], None]] = {
    "waits for data": _wait_for_data,
    "sends": _send_between_two,
    "receives": _receive_late,
}
