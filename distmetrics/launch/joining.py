"""How a rank joins the process group of its job, whoever has started it, and how it leaves."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from distmetrics.comm.background import finish
from distmetrics.comm.communicator import Communicator, use
from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.errors import PeerLostError
from distmetrics.guard.store import Tombstones
from distmetrics.guard.watchdog import leaving_by
from distmetrics.launch.environment import Environment

Connect = Callable[..., None]


def own_place(rank: int, world_size: int) -> Environment:
    """Return the place of a rank that we start ourselves: all of them are on this machine."""
    return Environment(
        launcher="distmetrics", rank=rank, world_size=world_size, local_world_size=world_size
    )


def file_store(folder: Path) -> Any:
    """Return a handle on a job's key-value store in a file: no rank that dies takes it along."""
    return dist.FileStore(str(folder / "store"), -1)  # type: ignore[attr-defined]


def tombstones_in(store: Any) -> Tombstones:
    """Return the departures in a job's store, where a rank that leaves says so."""
    return Tombstones(PrefixStore("board", store))


def join_group(
    environment: Environment, backend: str, connect: Connect, store: Any
) -> GroupCommunicator:
    """Return the communicator of the job's process group, once every rank has joined it.

    Raises:
        PeerLostError: a rank failed before all had joined.
    """
    rank, world_size = environment.rank, environment.world_size
    is_own = environment.launcher == "distmetrics"
    is_here = is_own or environment.main_address.startswith(("localhost", "127.", "::1"))
    if is_here and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # it would look up the host's name
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // environment.local_world_size))
    if backend == "nccl":  # a user's own init_process_group may not do it
        torch.cuda.set_device(environment.local_rank % torch.cuda.device_count())
    # The group blocks its own handle on a file while it is made. (Store.clone is torch 2.8's.)
    here = file_store(Path(store.path).parent) if is_own else store
    tombstones = tombstones_in(here)
    # The group's set-up would wait endlessly for a rank that has failed: see first that all came.
    meet(PrefixStore("here", here), tombstones, rank, world_size)
    with leaving_by(tombstones):
        connect(backend, store=PrefixStore("group", store), rank=rank, world_size=world_size)
        comm = GroupCommunicator.of(dist.group.WORLD)
    # A rank that fails at once would break the set-up of those that still connect.
    meet(PrefixStore("connected", here), tombstones, rank, world_size)
    return comm


def meet(store: Any, tombstones: Tombstones, rank: int, world_size: int) -> None:
    """Return once every rank has called this with the same store, or raise once one has failed."""
    if store.add("joined", 1) == world_size:
        store.set("all in", "")
    while not store.check(["all in"]):
        for left in tombstones.published():
            # Looked at again: one that failed after all had come does not undo the meeting.
            if left.failed and not store.check(["all in"]):
                text = f"rank {left.rank} failed before the world was complete: {left.why}"
                raise PeerLostError(text, rank=rank, peers=[left.rank])
        time.sleep(0.002)


@contextmanager
def taking_part(comm: GroupCommunicator) -> Iterator[None]:
    """Put a job's communicator in force; where the block raises, tell the other ranks why."""
    try:
        with losses_named(comm):
            with use(comm):
                yield
            finish()
    except BaseException as error:
        comm.leave(error)
        raise


class losses_named:  # noqa: N801  (a block; a class takes a third of a generator's time)
    """Name the rank whose loss breaks a collective of torch's own in the block, as DDP's are.

    Raises:
        PeerLostError: a rank failed, or its connection broke; the backend's error is the cause.
        DivergedError: a rank returned.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError) and isinstance(self._comm, GroupCommunicator):
            named = self._comm.blame(error)
            if named is not None:
                raise named from error


def exit_now() -> NoReturn:
    """End a failed process for good: a broken group can hang the ordinary way out."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
