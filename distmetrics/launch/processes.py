"""Start the ranks of a world as processes of this machine, and bring every one of them home.

The key-value store is a file: no rank that dies can take it along, no port is needed, and no name is looked up (a
``TCPStore`` asks the name server for every connection, which costs five seconds where none answers). The parent watches
its children, publishes on the notice board for a rank that was killed, and ends what is left when one fails. No process
outlives the call: children also watch the parent and end with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distmetrics.comm.base import raise_site
from distmetrics.comm.board import Board, meet
from distmetrics.comm.current import use
from distmetrics.comm.group import GroupCommunicator
from distmetrics.comm.outcome import Outcome
from distmetrics.errors import DistmetricsError, InputTypeError, PeerLostError
from distmetrics.preflight import find_unpicklable

__all__ = ["launch", "rank_main"]

_GRACE = 5.0  # seconds that ranks get to raise by themselves once another has failed


def launch(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    backend: str = "gloo",
    start_method: str = "forkserver",
    connect: Callable[..., None] = dist.init_process_group,
) -> list[Outcome]:
    """Call ``fn(comm, *args)`` in ``world_size`` processes of this machine.

    Args:
        fn: a function that can be pickled; with cloudpickle installed also a lambda or a local function.
        world_size: number of ranks.
        args: passed on, pickled by value.
        backend: of ``torch.distributed``: "gloo", or "nccl" with one GPU a rank.
        start_method: of ``multiprocessing``: "forkserver" (ranks fork from a small clean process), "spawn" or "fork".
        connect: makes the process group, called as ``torch.distributed.init_process_group``; pickled like ``fn``.

    Returns: how each rank ended, in rank order. Nothing is raised for a rank that failed.

    Raises:
        InputTypeError: ``fn`` or ``args`` cannot be pickled.
    """
    if world_size < 1:
        raise ValueError(f"a world needs at least one rank, got world_size={world_size}")
    context: Any = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        context.set_forkserver_preload([__name__])
    job = _pickled((fn, args, connect))
    with tempfile.TemporaryDirectory(prefix="distmetrics-") as folder:
        path = str(Path(folder) / "store")
        ranks = [_Rank(context, rank, world_size, path, backend, job) for rank in range(world_size)]
        try:
            for rank in ranks:
                rank.process.start()
                rank.theirs.close()
            return _collect(ranks, Board(_open(path, "board")))
        finally:
            for rank in ranks:
                rank.end()


class _Rank:
    """The parent's handle on one rank."""

    def __init__(self, context: Any, rank: int, world_size: int, path: str, backend: str, job: bytes) -> None:
        self.rank = rank
        self.ours, self.theirs = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_child, args=(rank, world_size, path, backend, job, self.theirs), name=f"rank {rank}"
        )

    def end(self) -> None:
        """Kill what still runs, and reap it."""
        if self.process.pid is not None:
            if self.process.is_alive():
                self.process.kill()
            self.process.join()
            self.process.close()
        self.ours.close()
        self.theirs.close()

    def outcome(self) -> Outcome | None:
        """Return how the rank ended, if it has; a process that ends without a word was killed."""
        if self.ours.poll():
            with contextlib.suppress(EOFError):  # it died while it wrote: its exit code tells
                return _unpickled(self.rank, self.ours.recv_bytes())
        if self.process.is_alive() and self.process.exitcode is None:
            return None
        self.process.join()
        return Outcome(self.rank, error=PeerLostError(_obituary(self.rank, self.process.exitcode), peers=[self.rank]))


def _collect(ranks: Sequence[_Rank], board: Board) -> list[Outcome]:
    """Wait until every rank has ended; once one has failed, the others have a moment to follow."""
    ended: dict[int, Outcome] = {}
    deadline: float | None = None
    while running := [rank for rank in ranks if rank.rank not in ended]:
        patience = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait([handle for rank in running for handle in (rank.ours, rank.process.sentinel)], patience)
        if not ready and deadline is not None and time.monotonic() >= deadline:
            for rank in running:
                text = f"rank {rank.rank} was still busy {_GRACE:g} s after another rank had failed, and was stopped"
                ended[rank.rank] = Outcome(rank.rank, error=PeerLostError(text, rank=rank.rank))
            break
        for rank in running:
            outcome = rank.outcome()
            if outcome is None:
                continue
            ended[rank.rank] = outcome
            if outcome.error is not None:
                deadline = deadline or time.monotonic() + _GRACE
                board.leave_for(rank.rank, str(outcome.error).partition("\n")[0].removeprefix(f"rank {rank.rank} "))
    return [ended[rank.rank] for rank in ranks]


def _child(rank: int, world_size: int, path: str, backend: str, job: bytes, out: Connection) -> None:
    """Run in the new process: join the world, run the job, send home how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, and the parent ends us
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_die_with, args=(parent.sentinel,), daemon=True).start()
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))
    try:
        board = Board(_open(path, "board"))  # a store of its own: the group may block on the other
        fn, arguments, connect = pickle.loads(job)  # noqa: S301  (our own parent's bytes)
        value = rank_main(
            lambda comm: fn(comm, *arguments), rank, world_size, backend, _open(path, "job"), board, connect
        )
        out.send_bytes(_result(Outcome(rank, value)))
    except BaseException as error:  # noqa: BLE001  (sent home whatever it is)
        out.send_bytes(_result(Outcome(rank, error=error)))
        out.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # a broken group can hang the ordinary way out
    out.close()


def rank_main(
    body: Callable[[GroupCommunicator], Any],
    rank: int,
    world_size: int,
    backend: str,
    store: Any,
    board: Board,
    connect: Callable[..., None] = dist.init_process_group,
) -> Any:
    """Be one rank: join the process group, call ``body(comm)``, leave; on an error tell the others why.

    The group is left open after an error: its other ends may hang in it, and the caller must end the process.
    """
    if backend == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    connect(backend, store=_part(store, "group"), rank=rank, world_size=world_size)
    comm = GroupCommunicator(board=board)
    GroupCommunicator.register(comm)
    meet(store, board, rank, world_size)
    try:
        with use(comm):
            value = body(comm)
    except BaseException as error:
        site = getattr(error, "site", None) or raise_site(error.__traceback__)
        board.leave(rank, f"raised {_first_line(error)}  {site or ''}".rstrip(), failed=True, calls=comm.calls)
        named = comm.blame(error)
        if named is not None:
            raise named from error
        raise
    board.leave(rank, "has returned", failed=False, calls=comm.calls)
    dist.destroy_process_group()
    return value


def _open(path: str, part: str) -> Any:
    return _part(dist.FileStore(path, -1), part)  # type: ignore[attr-defined]


def _part(store: Any, name: str) -> Any:
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def _die_with(parent_sentinel: int) -> None:
    wait([parent_sentinel])
    os._exit(1)


def _pickled(job: Any) -> bytes:
    try:
        return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        try:
            import cloudpickle
        except ImportError:
            raise InputTypeError(
                f"this cannot be sent to another process: {error}\n"
                "Likely: a lambda, a local function or class, an open file or a lock.\n"
                "Do:     move it to the top level of a module, or pip install cloudpickle."
            ) from error
        return bytes(cloudpickle.dumps(job))


def _result(outcome: Outcome) -> bytes:
    """Pickle how a rank ended; an error or a value that can't travel becomes an error that says so."""
    trace = "".join(traceback.format_exception(outcome.error)) if outcome.error is not None else ""
    try:
        data = pickle.dumps((outcome.value, outcome.error, trace))
        pickle.loads(data)  # noqa: S301  (an exception with a required argument pickles, but does not come back)
    except Exception as problem:  # noqa: BLE001  (any class may raise anything from its own pickling)
        if outcome.error is not None:
            return pickle.dumps((None, DistmetricsError(trace, rank=outcome.rank), trace))
        parts = find_unpicklable(outcome.value, "result", by_value=False)
        text = f"rank {outcome.rank} returned a {type(outcome.value).__name__} that can't be sent: {problem}"
        text = "\n  ".join([text, *map(str, parts)]) + "\nDo:     return tensors, numbers, or what can be pickled."
        return pickle.dumps((None, InputTypeError(text, rank=outcome.rank), ""))
    return data


def _unpickled(rank: int, data: bytes) -> Outcome:
    value, error, trace = pickle.loads(data)  # noqa: S301  (our own child's bytes)
    if error is not None:
        error.__cause__ = _RemoteTraceback(trace)
    return Outcome(rank, value, error)


class _RemoteTraceback(Exception):  # noqa: N818  (never raised: it shows the other process's traceback as a cause)
    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _obituary(rank: int, code: int | None) -> str:
    if code is not None and code < 0:
        return f"rank {rank} was killed by {signal.Signals(-code).name}"
    return (
        f"rank {rank} ended with exit code {code} before it could say why\n"
        "Likely: its script has no `if __name__ == '__main__':` guard, or called os._exit."
    )
