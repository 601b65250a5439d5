"""A world whose ranks are runs of one script: started by torchrun, or by rank 0 itself.

Where no launcher started us, this process becomes rank 0 and runs its own command line again for
the other ranks. They come to the same call and join. The world then stays until the script ends, so
that one call after another can use it: rank 0 waits for the others, and its exit code tells of one
that failed. No rank outlives rank 0, and a wait that can't be met ends in an error that names the
rank that is gone.
"""

import atexit
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.comm.verdict import what_ended
from distmetrics.errors import ConfigurationError, DivergedError, PeerLostError
from distmetrics.launch.clusters import OWN_STORE, detect, reachable
from distmetrics.launch.environment import Environment
from distmetrics.launch.joining import (
    Connect,
    exit_now,
    file_store,
    join_group,
    own_place,
    taking_part,
    tombstones_in,
    use_loopback,
)
from distmetrics.launch.subprocess_ranks import (
    SubprocessRanks,
    await_end_of_rank_zero,
    command_line,
    watch_rank_zero,
)

_LOOPBACK = ("localhost", "127.", "::1")


@dataclass
class ScriptWorld:
    """This process's place in a world that lasts as long as the script.

    Attributes:
        environment: who this process is.
        comm: who it talks through.
        subprocesses: the other ranks, where this process started them.
        error: what ended a call, after which the group can't be used.
    """

    environment: Environment
    comm: GroupCommunicator
    subprocesses: SubprocessRanks | None = None
    error: BaseException | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Put the world's communicator in force; where the block raises, tell the others why."""
        try:
            with taking_part(self.comm):
                yield
        except BaseException as error:
            self.error = error
            raise

    def close(self) -> None:
        """Leave the world at the end of the script; rank 0 waits for those that it started."""
        raised = what_ended()
        if raised is not None and self.error is None:
            self.error = raised
            self.comm.leave(raised)
        if self.error is not None:
            if self.subprocesses is not None:
                self.subprocesses.end(patient=isinstance(self.error, PeerLostError | DivergedError))
            elif self.environment.launcher == "distmetrics":
                await_end_of_rank_zero()
            exit_now()
        self.comm.leave(None)
        if dist.is_initialized():
            dist.destroy_process_group()
        if self.subprocesses is not None and (lost := self.subprocesses.join()):
            sys.stderr.write("\n".join(["distmetrics: the job failed", *lost, ""]))
            exit_now()


_world: ScriptWorld | None = None


def join(
    local_world_size: int,
    backend: str = "gloo",
    *,
    environment: Environment | None = None,
    connect: Connect = dist.init_process_group,
) -> ScriptWorld:
    """Join this script's world; the first call makes it, later ones return the same.

    Args:
        local_world_size: number of ranks on this machine.
        backend: of ``torch.distributed``.
        environment: who this process is, where the caller knows better than the variables of the
            environment.
        connect: makes the process group, called as ``torch.distributed.init_process_group``.

    Raises:
        ConfigurationError: the world has another size, or this is no script that could be run
            again.
        PeerLostError: a rank failed before it came here.
    """
    global _world
    if _world is not None:
        environment = _world.environment
    elif dist.is_initialized():
        environment = _adopted(local_world_size)
    else:
        environment = environment or detect()
    if environment is not None and environment.local_world_size != local_world_size:
        raise ConfigurationError(
            f"devices={local_world_size}, but {environment.launcher} runs "
            f"{environment.local_world_size} processes on this machine",
            do="give both the same number, or say devices='auto' under a launcher.",
        )
    if _world is None:
        _world = _make(environment, local_world_size, backend, connect)
    if _world.error is not None:
        raise PeerLostError(
            "the world of this script is broken: an earlier call has failed",
            rank=_world.environment.rank,
        ) from _world.error
    return _world


def end_if_alone() -> None:
    """End a world of this process alone that we have made; a later call makes another.

    A fork of this process would have the group open, and none of its threads.
    """
    global _world
    if _world is None or _world.subprocesses is None or _world.environment.world_size > 1:
        return
    atexit.unregister(_world.close)
    if dist.is_initialized():
        dist.destroy_process_group()
    _world.subprocesses.join()
    _world = None


def _make(
    environment: Environment | None, world_size: int, backend: str, connect: Connect
) -> ScriptWorld:
    if environment is None:
        return _as_rank_zero(world_size, backend, connect)
    if environment.launcher == "init_process_group":
        return ScriptWorld(environment, GroupCommunicator.of(dist.group.WORLD))
    if environment.launcher == "distmetrics":
        watch_rank_zero()
        return _in_file(environment, os.environ[OWN_STORE], backend, connect)
    environment = reachable(environment)
    if environment.main_address.startswith(_LOOPBACK):
        use_loopback()
    store = _meet_at_rank_zero(environment)
    return _connected(environment, join_group(environment, backend, connect, store, store))


def _meet_at_rank_zero(environment: Environment) -> Any:
    """Return the store at rank 0's address; under torchrun its agent may host it."""
    if environment.launcher == "torchrun":
        return next(rendezvous("env://"))[0]
    host = environment.main_address
    url = f"tcp://{f'[{host}]' if ':' in host else host}:{environment.main_port}"
    return next(rendezvous(url, environment.rank, environment.world_size))[0]


def _as_rank_zero(world_size: int, backend: str, connect: Connect) -> ScriptWorld:
    """Start the other ranks, which run this script again, and join them."""
    command_line()  # refused before anything is made
    path = str(Path(tempfile.mkdtemp(prefix="distmetrics-")) / "store")
    subprocesses = SubprocessRanks(world_size, path, tombstones_in(file_store(path)))
    try:
        world = _in_file(own_place(0, world_size), path, backend, connect)
    except BaseException:
        subprocesses.end(patient=True)
        raise
    world.subprocesses = subprocesses
    return world


def _in_file(environment: Environment, path: str, backend: str, connect: Connect) -> ScriptWorld:
    """Join the process group of a job whose store is a file: the group may block on its handle."""
    comm = join_group(environment, backend, connect, file_store(path), file_store(path))
    return _connected(environment, comm)


def _connected(environment: Environment, comm: GroupCommunicator) -> ScriptWorld:
    """Return a world that ends with the script."""
    world = ScriptWorld(environment, comm)
    atexit.register(world.close)
    return world


def _adopted(local_world_size: int) -> Environment:
    """Describe the process group that the user has made, and will close."""
    rank, detected = dist.get_rank(), detect()
    return Environment(
        launcher="init_process_group",
        rank=rank,
        world_size=dist.get_world_size(),
        local_rank=rank % local_world_size if detected is None else detected.local_rank,
        local_world_size=local_world_size if detected is None else detected.local_world_size,
    )
