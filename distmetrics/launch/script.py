"""A world whose ranks are runs of one script: started by a launcher, or by rank 0 itself.

Without a launcher, this process becomes rank 0 and runs its own command line again for the other
ranks. They come to the same call and join. The world stays until the script ends: rank 0 waits for
the others, and its exit code tells of one that failed. No rank outlives rank 0.
"""

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.comm.verdict import what_ended
from distmetrics.errors import ConfigurationError, PeerLostError
from distmetrics.guard.store import RAISING_GRACE
from distmetrics.launch.environment import OWN_STORE, Environment, detect, reachable
from distmetrics.launch.joining import (
    Connect,
    exit_now,
    file_store,
    join_group,
    own_place,
    taking_part,
    tombstones_in,
)
from distmetrics.launch.spawn import end_all, end_with_parent, exit_reason, has_script, join_all

_PARENT = "DISTMETRICS_PARENT"  # process id of rank 0; set for the ranks that it starts
_POLL = 0.05
_FOLDER = Path.cwd()  # a script may change its folder later, and is found from here


@dataclass
class ScriptWorld:
    """This process's place in a world that lasts as long as the script."""

    environment: Environment
    comm: GroupCommunicator
    others: "OtherRanks | None" = None  # where this process started them
    error: BaseException | None = None  # what ended a call, after which the group can't be used

    @contextlib.contextmanager
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
        if self.error is None:
            self.error = what_ended()
            self.comm.leave(self.error)
        failed, lost = self.error is not None, list[str]()
        if dist.is_initialized() and not failed:
            dist.destroy_process_group()
        if self.others is not None:
            lost = self.others.end(RAISING_GRACE if failed else None)
        elif failed:
            # Rank 0's connections close a moment before its process is gone: the watcher in this
            # process then removes the job's files.
            time.sleep(3 * _POLL)
        if lost and not failed:
            sys.stderr.write("\n".join(["distmetrics: the job failed", *lost, ""]))
        if lost or failed:
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

    ``environment`` says who this process is, by default as the variables of its launcher say.

    Raises:
        ConfigurationError: the world has another size, or there is no script to run again.
        PeerLostError: a rank failed before it came here.
    """
    global _world
    if _world is None and dist.is_initialized():
        # The user has made the process group, and will close it.
        place = detect() or Environment(
            launcher="init_process_group",
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            local_world_size=local_world_size,
        )
        _world = ScriptWorld(place, GroupCommunicator.of(dist.group.WORLD))
    environment = environment or detect() if _world is None else _world.environment
    if environment is not None and environment.local_world_size != local_world_size:
        raise ConfigurationError(
            f"devices={local_world_size}, but {environment.launcher} runs "
            f"{environment.local_world_size} processes on this machine",
            do="give both the same number, or say devices='auto' under a launcher.",
        )
    if _world is None:
        _world = _made(environment, local_world_size, backend, connect)
    if _world.error is not None:
        raise PeerLostError(
            "the world of this script is broken: an earlier call has failed",
            rank=_world.environment.rank,
        ) from _world.error
    return _world


def end_if_alone() -> None:
    """End our world of this process alone: a fork would have its group, and none of its threads."""
    global _world
    if _world is not None and _world.others is not None and _world.environment.world_size == 1:
        atexit.unregister(_world.close)
        if dist.is_initialized():
            dist.destroy_process_group()
        _world.others.end()
        _world = None


def _made(
    environment: Environment | None, world_size: int, backend: str, connect: Connect
) -> ScriptWorld:
    """Join the job's other ranks, or start them; the world is closed when the script ends."""
    others = None
    if environment is None:
        others = OtherRanks(world_size)
        environment, store = own_place(0, world_size), file_store(others.folder)
    elif environment.launcher == "distmetrics":
        watch_rank_zero()
        store = file_store(Path(os.environ[OWN_STORE]))
    else:
        environment = reachable(environment)
        host = environment.main_address
        url = f"tcp://{f'[{host}]' if ':' in host else host}:{environment.main_port}"
        # Rank 0 hosts the store, or torchrun's agent.
        store = next(rendezvous(url, environment.rank, environment.world_size))[0]
    try:
        comm = join_group(environment, backend, connect, store)
    except BaseException:
        if others is not None:
            others.end(RAISING_GRACE)
        raise
    world = ScriptWorld(environment, comm, others)
    atexit.register(world.close)
    return world


class OtherRanks:
    """Rank 0's handle on the ranks that it starts; a thread publishes how they end."""

    def __init__(self, world_size: int) -> None:
        command_line()  # refused before anything is made
        self.folder = Path(tempfile.mkdtemp(prefix="distmetrics-"))
        self._runs = [_RankScript(rank, world_size, self.folder) for rank in range(1, world_size)]
        self._tombstones = tombstones_in(file_store(self.folder))
        self._closed = threading.Event()
        self._watcher = threading.Thread(
            target=self._watch, name="distmetrics other ranks", daemon=True
        )
        self._watcher.start()

    def end(self, seconds: float | None = None) -> list[str]:
        """Wait for the ranks, some seconds at most; end them; name those that failed."""
        try:
            join_all(self._runs, seconds)
        finally:
            self._closed.set()
            self._watcher.join()
            end_all(self._runs)
            shutil.rmtree(self.folder, ignore_errors=True)
        failed = [run for run in self._runs if run.returncode]
        return [f"rank {run.rank} {exit_reason(run.returncode)}" for run in failed]

    def _watch(self) -> None:
        """Publish for each rank that ends without having said why."""
        while not self._closed.wait(_POLL):
            for run in self._runs:
                if run.poll() is not None:
                    self._tombstones.leave_for(run.rank, exit_reason(run.returncode))


class _RankScript(subprocess.Popen[bytes]):
    """A run of the script, waited for as for a process of multiprocessing."""

    def __init__(self, rank: int, world_size: int, folder: Path) -> None:
        self.rank = rank
        environ = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            OWN_STORE: str(folder),
            _PARENT: str(os.getpid()),
        }
        super().__init__(command_line(), env=environ, cwd=_FOLDER, stdin=subprocess.DEVNULL)

    def join(self, seconds: float | None = None) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(seconds)


def command_line() -> list[str]:
    """Return the command of this process, with ``-m``, ``-c`` and the interpreter's options."""
    if not has_script() and "-c" not in sys.orig_argv:
        raise ConfigurationError(
            "strategy='ddp' runs the script again for each rank, and there is none: this is a "
            "notebook or a prompt",
            do="say strategy='ddp_spawn', or put the code into a file.",
        )
    return [sys.executable, *sys.orig_argv[1:]]


@functools.cache
def watch_rank_zero() -> None:
    """Once, in a rank that rank 0 has started: end when rank 0 ends, and leave Ctrl-C to it."""
    parent = int(os.environ[_PARENT])

    def rank_zero_has_ended() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL)

    end_with_parent(rank_zero_has_ended, Path(os.environ[OWN_STORE]))
