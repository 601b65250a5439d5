"""What the ranks of the guard's tests do; processes import it by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import distmetrics as dm
from distmetrics import guard

ONE = torch.ones(3)
LONG = 1.5  # seconds; one that is stuck is watched for less


def one_is_busy(comm: Any, raises: bool) -> None:
    """Sum; then the last rank does something else, for longer than who started it waits, and rank 1 may raise."""
    dm.all_reduce(ONE, name="sum 0")
    if comm.rank == comm.world_size - 1:
        time.sleep(60)
    if comm.rank == 1 and raises:
        raise ValueError("a bad batch")
    dm.all_reduce(ONE, name="sum 1")


# --- collectives of torch's own inside guard.watch() ----------------------------------------------------------------


def watched(comm: Any) -> list[Any]:
    """Uneven ones, objects, and those that torch collects; then blocks of two threads, which end in turn."""
    size, x, y, before = comm.world_size, torch.ones(1), torch.ones(1), dist.all_reduce
    objects: list[Any] = [None] * size
    uneven = torch.arange(size + comm.rank * size)
    exchanged = torch.empty(sum(1 + r for r in range(size)), dtype=uneven.dtype)
    with guard.watch():
        dist.all_gather_object(objects, comm.rank)
        dist.all_to_all_single(exchanged, uneven, [1 + r for r in range(size)], [1 + comm.rank] * size)
        with dist.distributed_c10d._coalescing_manager():
            dist.all_reduce(x)
            dist.all_reduce(y)
        direct = comm.all_reduce(torch.ones(2), "sum")
    second_began, first_ended = threading.Event(), threading.Event()

    def first() -> None:
        with guard.watch():
            second_began.wait(10)
        first_ended.set()

    thread = threading.Thread(target=first)
    thread.start()
    with guard.watch():
        second_began.set()
        first_ended.wait(10)
        is_watched = dist.all_reduce is not before
    thread.join()
    back = is_watched and dist.all_reduce is before
    return [objects, exchanged.tolist(), float(x), float(y), direct.tolist(), back]


def watched_and_alone(comm: Any) -> None:
    """The wait of a watched collective is watched as well."""
    with guard.watch():
        if comm.rank:
            raise ValueError("a bad batch")
        dist.all_reduce(ONE.clone())


# --- a training loop of DistributedDataParallel ---------------------------------------------------------------------


class Slow(nn.Module):
    """Passes its input on; its backward pass may take long, in C code that no frame of Python shows, or asleep."""

    how = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "sleeps in backward":
            x.register_hook(lambda gradient: time.sleep(LONG))
        if self.how != "computes in backward":
            return x
        product = x.sum() * torch.ones(1000, 1000)
        began = time.monotonic()
        while time.monotonic() - began < LONG:
            product = product @ torch.full((1000, 1000), 1e-3)
        return x + 0 * product.sum()


def loop(comm: Any, what: str, wraps: bool = True) -> None:
    """Train for three steps, in the second of which ranks may take long or call alone."""
    torch.manual_seed(0)
    slow = Slow()
    net = nn.Sequential(nn.Linear(8, 8), slow, nn.Linear(8, 1))
    model = DistributedDataParallel(net) if wraps else net
    for step in range(3):
        slow.how = what if step == comm.rank == 1 else ""
        if step == 1:
            BEFORE.get(what, lambda _: None)(comm)
        loss = model(torch.ones(4, 8)).mean()
        dm.mean(loss.detach(), weight=4)
        if what == "calls alone" and comm.rank == step == 1:
            dm.barrier(name="which rank 1 alone calls")  # distlint: ignore[DL101] what this is about
        loss.backward()


def loops(comm: Any) -> bool:
    """Train once for each way to take one's time."""
    for what in BEFORE:
        loop(comm, what, wraps=False)
    for what in ("computes in backward", "sleeps in backward"):
        loop(comm, what)
        loop(comm, what, wraps=False)
    return True


def _wait_for_data(comm: Any) -> None:
    if comm.rank == 1:
        time.sleep(LONG)


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
        time.sleep(LONG)
        dist.send(torch.ones(1), 1)
    elif comm.rank == 1:
        dist.recv(torch.ones(1), 2)


BEFORE: dict[str, Callable[[Any], None]] = {
    "waits for data": _wait_for_data,
    "sends": _send_between_two,
    "receives": _receive_late,
}
