"""How a rank joins the process group of its job, whoever has started it."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        launcher="distmetrics",
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        local_world_size=world_size,
    )


def file_store(path: str) -> Any:
    """Return a handle on the key-value store in a file: no rank that dies can take it along."""
    return dist.FileStore(path, -1)  # type: ignore[attr-defined]


def tombstones_in(store: Any) -> Tombstones:
    """Return the departures in a job's store, where a rank that leaves says so."""
    return Tombstones(PrefixStore("board", store))


def join_group(
    environment: Environment,
    backend: str,
    connect: Connect,
    store: Any,
    here: Any,
) -> GroupCommunicator:
    """Return the communicator of the job's process group, once every rank has joined it.

    Args:
        environment: who this process is.
        backend: of ``torch.distributed``.
        connect: makes the process group, called as ``torch.distributed.init_process_group``.
        store: of the job, for the group alone, which may block on it.
        here: a second handle on the store.

    Raises:
        PeerLostError: a rank failed before all had joined.
    """
    rank, world_size = environment.rank, environment.world_size
    tombstones = tombstones_in(here)
    if environment.launcher == "distmetrics":
        use_loopback()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cores_per_rank(environment.local_world_size))
    if backend == "nccl":
        torch.cuda.set_device(environment.local_rank % torch.cuda.device_count())
    # The group's set-up would wait endlessly for a rank that has failed: see first that all came.
    meet(PrefixStore("here", here), tombstones, rank, world_size)
    with leaving_by(tombstones):
        connect(backend, store=PrefixStore("group", store), rank=rank, world_size=world_size)
        comm = GroupCommunicator.of(dist.group.WORLD)
    meet(PrefixStore("connected", here), tombstones, rank, world_size)
    return comm


def meet(store: Any, tombstones: Tombstones, rank: int, world_size: int) -> None:
    """Return once every rank has called this with the same store, or raise once one has failed.

    Without it a rank that fails at once would break the set-up of those that still connect.

    Raises:
        PeerLostError: a rank failed before all had come.
    """
    if store.add("joined", 1) == world_size:
        store.set("all in", "")
    while not store.check(["all in"]):
        failed = [departure for departure in tombstones.published() if departure.failed]
        # Looked at again: one that failed after all had come does not undo the meeting.
        if failed and not store.check(["all in"]):
            text = f"rank {failed[0].rank} failed before the world was complete: {failed[0].why}"
            raise PeerLostError(text, rank=rank, peers=[failed[0].rank])
        time.sleep(0.002)


@contextmanager
def taking_part(comm: GroupCommunicator) -> Iterator[None]:
    """Put a job's communicator in force; where the block raises, tell the other ranks why.

    Raises:
        PeerLostError: another rank failed and broke the connection of a collective of torch's own.
    """
    try:
        with losses_named(comm):
            with use(comm):
                yield
            finish()
    except BaseException as error:
        comm.leave(error)
        raise


@contextmanager
def losses_named(comm: Communicator) -> Iterator[None]:
    """Name the rank whose loss breaks a collective of torch's own in the block, as DDP's are.

    Raises:
        PeerLostError: a rank failed, or its connection broke; the backend's error is the cause.
        DivergedError: a rank returned.
    """
    try:
        yield
    except RuntimeError as error:
        named = comm.blame(error) if isinstance(comm, GroupCommunicator) else None
        if named is None:
            raise
        raise named from error


def cores_per_rank(local_world_size: int) -> int:
    """Return the number of threads that a rank may use, so that all have a core."""
    return max(1, (os.cpu_count() or 1) // local_world_size)


def use_loopback() -> None:
    """Keep gloo on this machine: it would look up the host's name otherwise."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def exit_now() -> NoReturn:
    """End a failed process for good: a broken group can hang the ordinary way out."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
