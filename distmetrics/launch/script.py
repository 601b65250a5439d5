"""A world whose ranks are runs of one script: started by torchrun, or by rank 0 itself.

Where no launcher started us, this process becomes rank 0 and runs its own command line again for
the other ranks. They come to the same call and join. The world then stays until the script ends, so
that one call after another can use it: rank 0 waits for the others, and its exit code tells of one
that failed. No rank outlives rank 0, and a wait that can't be met ends in an error that names the
rank that is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from distmetrics.comm.current import use
from distmetrics.comm.group import GroupCommunicator
from distmetrics.errors import ConfigurationError, DivergedError, PeerLostError
from distmetrics.launch.clusters import OWN_STORE
from distmetrics.launch.environment import detect, reachable
from distmetrics.launch.place import Environment
from distmetrics.launch.siblings import Siblings, clean_up_after_rank_zero, watch_rank_zero
from distmetrics.liveness.departures import Departure, Departures, meet, reason

_LOOPBACK = ("localhost", "127.", "::1")


@dataclass
class ScriptWorld:
    """This process's place in a world that lasts as long as the script.

    Attributes:
        environment: who this process is.
        comm: who it talks through.
        departures: where a rank that leaves says so; None in a process group of the user's.
        siblings: the processes that rank 0 started.
        error: what ended a call, after which the group can't be used.
    """

    environment: Environment
    comm: GroupCommunicator
    departures: Departures | None = None
    siblings: Siblings | None = None
    error: BaseException | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Put the world's communicator in force; where the block raises, tell the others why."""
        try:
            with naming_the_lost(self.comm), use(self.comm):
                yield
        except BaseException as error:
            self.error = error
            self._leave(error)
            raise

    def _leave(self, error: BaseException | None) -> None:
        if self.departures is None:
            return
        # The store may be gone, with the process that hosts it.
        with contextlib.suppress(RuntimeError):
            failed = error is not None
            self.departures.leave(
                Departure(self.environment.rank, reason(error), failed, self.comm.counts)
            )

    def close(self) -> None:
        """Leave the world at the end of the script; rank 0 brings home the ranks that it started."""
        raised = getattr(sys, "last_value", None)  # what ended the script, if something did
        if raised is not None and self.error is None:
            self.error = raised
            self._leave(raised)
        if self.error is not None:
            if self.siblings is not None:
                self.siblings.end(patient=isinstance(self.error, PeerLostError | DivergedError))
            clean_up_after_rank_zero()
            _exit_now()
        self._leave(None)
        if dist.is_initialized():
            dist.destroy_process_group()
        if self.siblings is not None and (lost := self.siblings.join()):
            sys.stderr.write("\n".join(["distmetrics: the job failed", *lost, ""]))
            _exit_now()


@contextmanager
def naming_the_lost(comm: GroupCommunicator) -> Iterator[None]:
    """Turn a connection error of torch's own collectives into one that names the lost rank.

    Raises:
        PeerLostError: another rank failed and broke the connection to this one.
    """
    try:
        yield
    except RuntimeError as error:
        if (named := comm.blame(error)) is not None:
            raise named from error
        raise


_world: ScriptWorld | None = None


def join(
    local_world_size: int,
    backend: str = "gloo",
    *,
    found: Environment | None = None,
    connect: Callable[..., None] = dist.init_process_group,
) -> ScriptWorld:
    """Join this script's world; the first call makes it, later ones return the same.

    Args:
        local_world_size: number of ranks on this machine.
        backend: of ``torch.distributed``.
        found: who this process is, where the caller knows better than the variables of the
            environment.
        connect: makes the process group, called as ``torch.distributed.init_process_group``.

    Raises:
        ConfigurationError: the world has another size, or this is no script that could be run
            again.
        PeerLostError: a rank failed before it came here.
    """
    global _world
    if _world is None:
        environment = _adopted(local_world_size) if dist.is_initialized() else (found or detect())
        if environment is not None:
            _check_size(environment, local_world_size)
        _world = _make(environment, local_world_size, backend, connect)
    _check_size(_world.environment, local_world_size)
    if _world.error is not None:
        raise PeerLostError(
            "the world of this script is broken: an earlier call has failed",
            rank=_world.environment.rank,
        ) from _world.error
    return _world


def end_if_alone() -> None:
    """End this script's world where nobody started this process and it is all of it; a later call
    makes another.

    A fork of this process would have the group open, and none of its threads.
    """
    global _world
    if _world is None or _world.siblings is None or _world.environment.world_size > 1:
        return
    atexit.unregister(_world.close)
    if dist.is_initialized():
        dist.destroy_process_group()
    _world.siblings.join()
    _world = None


def _check_size(environment: Environment, local_world_size: int) -> None:
    if environment.local_world_size != local_world_size:
        raise ConfigurationError(
            f"devices={local_world_size}, but {environment.launcher} runs "
            f"{environment.local_world_size} "
            "processes on this machine",
            do="give both the same number, or say devices='auto' under a launcher.",
        )


def _make(
    environment: Environment | None, world_size: int, backend: str, connect: Callable[..., None]
) -> ScriptWorld:
    if environment is None:
        return _as_rank_zero(world_size, backend, connect)
    if environment.launcher == "init_process_group":
        return ScriptWorld(environment, GroupCommunicator.of(dist.group.WORLD))
    if environment.launcher == "distmetrics":
        watch_rank_zero()
        path = os.environ[OWN_STORE]
        return _connected(environment, backend, _file_store(path), _file_store(path), connect)
    environment = reachable(environment)
    if environment.main_address.startswith(_LOOPBACK):
        _use_loopback()
    store = _met(environment)
    return _connected(environment, backend, store, store, connect)


def _met(environment: Environment) -> Any:
    """Return the store at rank 0's address; torchrun's agent may host it, as only its variables
    say.
    """
    if environment.launcher == "torchrun":
        return next(rendezvous("env://"))[0]
    host = environment.main_address
    url = f"tcp://{f'[{host}]' if ':' in host else host}:{environment.main_port}"
    return next(rendezvous(url, environment.rank, environment.world_size))[0]


def _as_rank_zero(world_size: int, backend: str, connect: Callable[..., None]) -> ScriptWorld:
    """Start the other ranks, which run this script again, and join them."""
    path = str(Path(tempfile.mkdtemp(prefix="distmetrics-")) / "store")
    siblings = Siblings(world_size, path, _departures(_file_store(path)))
    try:
        environment = Environment(
            launcher="distmetrics",
            rank=0,
            world_size=world_size,
            local_rank=0,
            local_world_size=world_size,
        )
        return _connected(
            environment, backend, _file_store(path), _file_store(path), connect, siblings
        )
    except BaseException:
        siblings.end(patient=True)
        raise


def _connected(
    environment: Environment,
    backend: str,
    store: Any,
    other: Any,
    connect: Callable[..., None],
    siblings: Siblings | None = None,
) -> ScriptWorld:
    """Join the process group; ``other`` is a second handle on the store, for the group may block on
    its own.
    """
    departures = _departures(other)
    rank, world_size = environment.rank, environment.world_size
    if environment.launcher == "distmetrics":
        _use_loopback()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // environment.local_world_size))
    if backend == "nccl":
        torch.cuda.set_device(environment.local_rank)
    here = PrefixStore("here", other)
    meet(
        here, departures, rank, world_size
    )  # the group's set-up can't be told that a rank never comes
    connect(backend, store=PrefixStore("group", store), rank=rank, world_size=world_size)
    comm = GroupCommunicator(departures=departures)
    GroupCommunicator.register(comm)
    meet(PrefixStore("connected", other), departures, rank, world_size)
    world = ScriptWorld(environment, comm, departures, siblings)
    atexit.register(world.close)
    return world


def _adopted(local_world_size: int) -> Environment:
    """Describe the process group that the user has made, and will close."""
    found = detect()
    return Environment(
        launcher="init_process_group",
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=dist.get_rank() % local_world_size if found is None else found.local_rank,
        local_world_size=local_world_size if found is None else found.local_world_size,
    )


def _file_store(path: str) -> Any:
    return dist.FileStore(path, -1)  # type: ignore[attr-defined]


def _departures(store: Any) -> Departures:
    return Departures(PrefixStore("board", store))


def _use_loopback() -> None:
    """Keep gloo on this machine, for as long as the world lasts: it would look up the host's name
    otherwise.
    """
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _exit_now() -> None:
    """End a failed process for good: a broken group can hang the ordinary way out."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
