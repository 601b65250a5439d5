"""Start the ranks of a world as processes of this machine, and bring every one of them home.

The key-value store is a file: no rank that dies can take it along, no port is needed, and no name
is looked up (a ``TCPStore`` asks the name server for every connection, which costs five seconds
where none answers). The parent watches its children, publishes the departure of a rank that
was killed, and ends what is left when one fails. No process outlives the call: children also watch
the parent and end with it.
"""

import contextlib
import faulthandler
import math
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist

from distmetrics.comm.verdict import Outcome
from distmetrics.errors import PeerLostError, first_line
from distmetrics.guard.report import report_all
from distmetrics.guard.settings import current_settings, put_in_force
from distmetrics.guard.store import LAST_WORDS, RAISING_GRACE, Tombstones
from distmetrics.launch.joining import (
    Connect,
    exit_now,
    file_store,
    join_group,
    own_place,
    taking_part,
    tombstones_in,
)
from distmetrics.launch.pickles import (
    exit_reason,
    pack_outcome,
    pickled,
    unpack_outcome,
    without_missing_script,
)

_CAN_TELL = hasattr(faulthandler, "register")  # not on Windows
_ANSWER = 2.0  # seconds in which a rank says where it is


def launch(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    backend: str = "gloo",
    start_method: str = "forkserver",
    connect: Connect = dist.init_process_group,
    limit: float | None = None,
    variables: Sequence[Mapping[str, str]] = (),
    pipes: Sequence[Connection] = (),
) -> list[Outcome]:
    """Call ``fn(comm, *args)`` in ``world_size`` processes of this machine.

    Args:
        fn: a function that can be pickled; with cloudpickle installed also a lambda or a local
            function.
        world_size: number of ranks.
        args: passed on, pickled by value.
        backend: of ``torch.distributed``: "gloo", or "nccl" with one GPU a rank.
        start_method: of ``multiprocessing``: "forkserver" (ranks fork from a small clean process),
            "spawn" or "fork".
        connect: makes the process group, called as ``torch.distributed.init_process_group``;
            pickled like ``fn``.
        limit: seconds after which ranks that have not ended are stopped; by default they have all
            the time they need.
        variables: of each rank's environment, besides those of this process;
            ``start_method="spawn"`` alone gives ranks an interpreter of their own, which reads
            them.
        pipes: ends of pipes, one for each rank, which calls ``fn(comm, pipe, *args)``; whoever
            holds the other ends is told by them when a rank has ended.

    Returns: how each rank ended, in rank order. Nothing is raised for a rank that failed.

    Raises:
        InputTypeError: ``fn`` or ``args`` cannot be pickled.
    """
    if world_size < 1:
        raise ValueError(f"a world needs at least one rank, got world_size={world_size}")
    context: Any = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        context.set_forkserver_preload([__name__])
    # Settings travel with the job: the forkserver has the variables of its own start.
    job = pickled((fn, args, world_size, backend, connect, current_settings()))
    with tempfile.TemporaryDirectory(prefix="distmetrics-") as folder:
        path = str(Path(folder) / "store")
        ranks = [_Rank(context, rank, path, job, pipes[rank:][:1]) for rank in range(world_size)]
        try:
            for rank in ranks:
                own = variables[rank.rank] if variables else {}
                with _environment(own), without_missing_script():
                    rank.process.start()
                rank.close_theirs()
            return _collect(ranks, tombstones_in(file_store(path)), limit)
        finally:
            if current_settings().report is not None:
                _let_report(ranks)
            for rank in ranks:
                rank.end()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for as long as a child is started, which inherits them."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class _Rank:
    """The parent's handle on one rank."""

    def __init__(
        self, context: Any, rank: int, path: str, job: bytes, pipes: Sequence[Connection]
    ) -> None:
        self.rank = rank
        self.stack = _stack_file(path, rank)
        self.stack.touch()
        self.ours, theirs = context.Pipe(duplex=False)
        self._theirs = theirs, *pipes
        args = rank, path, job, *self._theirs
        self.process = context.Process(target=_child, args=args, name=f"rank {rank}")

    def close_theirs(self) -> None:
        """Close the ends of pipes that the rank has, so that they end with it."""
        for pipe in self._theirs:
            pipe.close()

    def end(self) -> None:
        """Kill what still runs, and reap it."""
        if self.process.pid is not None:
            if self.process.is_alive():
                self.process.kill()
            self.process.join()
            self.process.close()
        self.ours.close()
        self.close_theirs()

    def where(self) -> str:
        """Return the stack of the process's main thread; "" if it does not answer."""
        if not _CAN_TELL or not self.process.is_alive():
            return ""
        os.kill(self.process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _ANSWER
        before, text = "", self.stack.read_text()
        while (not _main_thread(text) or text != before) and time.monotonic() < deadline:
            time.sleep(0.02)  # it is written thread by thread, the main thread last
            before, text = text, self.stack.read_text()
        return _main_thread(text)

    def stopped(self, why: str) -> Outcome:
        """Return the end of a rank that is stopped, with the place where it was."""
        error = PeerLostError(f"rank {self.rank} {why}", rank=self.rank)
        if where := self.where():
            error.add_note(f"rank {self.rank} was here, most recent call first:\n{where}")
        return Outcome(self.rank, error=error)

    def outcome(self) -> Outcome | None:
        """Return how the rank ended, if it has; a process that ends without a word was killed."""
        is_alive = self.process.is_alive()  # asked first: it may report and end in between
        if self.ours.poll():
            with contextlib.suppress(EOFError):  # it died while it wrote: its exit code tells
                return unpack_outcome(self.rank, self.ours.recv_bytes())
        if is_alive:
            return None
        self.process.join()
        code = self.process.exitcode
        why, likely = f"rank {self.rank} {exit_reason(code)}", ""
        if code >= 0:
            why += " before it could say why"
            likely = "its script has no `if __name__ == '__main__':` guard, or called os._exit."
        error = PeerLostError(why, likely=likely, peers=[self.rank])
        return Outcome(self.rank, error=error)


def _let_report(ranks: Sequence[_Rank]) -> None:
    """End what still runs by a signal that lets it write its report."""
    running = [rank.process for rank in ranks if rank.process.pid is not None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + LAST_WORDS
    for process in running:
        process.join(max(0.0, deadline - time.monotonic()))


def _collect(ranks: Sequence[_Rank], tombstones: Tombstones, limit: float | None) -> list[Outcome]:
    """Wait until every rank has ended; once one has failed, the others have a moment to follow."""
    ended: dict[int, Outcome] = {}
    deadline = math.inf if limit is None else time.monotonic() + limit
    why = f"was still busy after {limit or 0:g} s, the limit of this run, and was stopped"
    while running := [rank for rank in ranks if rank.rank not in ended]:
        handles = [handle for rank in running for handle in (rank.ours, rank.process.sentinel)]
        seconds = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        if not wait(handles, seconds):
            ended.update({rank.rank: rank.stopped(why) for rank in running})
            break
        for rank in running:
            outcome = rank.outcome()
            if outcome is None:
                continue
            ended[rank.rank] = outcome
            if outcome.error is None:
                continue
            grace = time.monotonic() + RAISING_GRACE
            if grace < deadline:
                deadline = grace
                why = f"was still busy {RAISING_GRACE:g} s after another rank had failed"
                why += ", and was stopped"
            why_it_left = first_line(outcome.error).removeprefix(f"rank {rank.rank} ")
            tombstones.leave_for(rank.rank, why_it_left)
    return [ended[rank.rank] for rank in ranks]


def _child(rank: int, path: str, job: bytes, out: Connection, *pipes: Connection) -> None:
    """Run in the new process: join the world, run the job, send home how it ended."""
    # Ctrl-C reaches the parent, and the parent ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_die_with, args=(parent.sentinel,), daemon=True).start()
    if _CAN_TELL:  # also in the midst of a call that never returns
        stacks = _stack_file(path, rank).open("w")
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    try:
        # Our own parent's bytes.
        fn, arguments, world_size, backend, connect, settings = pickle.loads(job)  # noqa: S301
        stores = file_store(path), file_store(path)
        with put_in_force(settings):
            comm = join_group(own_place(rank, world_size), backend, connect, *stores)
            # After an error the group is left open: its other ends may hang in it.
            with taking_part(comm):
                value = fn(comm, *pipes, *arguments)
            comm.leave(None)
            dist.destroy_process_group()
        out.send_bytes(pack_outcome(Outcome(rank, value)))
    except BaseException as error:  # noqa: BLE001  (sent home whatever it is)
        out.send_bytes(pack_outcome(Outcome(rank, error=error)))
        out.close()
        exit_now()
    out.close()


def _stack_file(path: str, rank: int) -> Path:
    return Path(f"{path}-stack-{rank}")


def _main_thread(stacks: str) -> str:
    """Return the main thread's part of all stacks, down to where this module's code begins."""
    blocks = [block for block in stacks.split("hread 0x") if __file__ in block]
    lines = blocks[-1].splitlines()[1:] if blocks else []
    own = next((place for place, line in enumerate(lines) if __file__ in line), len(lines))
    return "\n".join(lines[:own])


def _die_with(parent_sentinel: int) -> None:
    wait([parent_sentinel])
    report_all()
    os._exit(1)
