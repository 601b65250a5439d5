"""Processes of this machine that a call starts as the ranks of a world, and ends.

The key-value store is a file: no rank that dies can take it along, no port is needed, and no name
is looked up (a ``TCPStore`` asks the name server for every connection, which costs five seconds
where none answers). The parent publishes why a rank has ended, and ends the others when one fails.
Children watch the parent and end with it.
"""

import contextlib
import faulthandler
import importlib.util
import io
import marshal
import math
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist

from distmetrics.comm.verdict import Outcome
from distmetrics.errors import DistmetricsError, InputTypeError, PeerLostError, first_line
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
from distmetrics.launch.preflight import find_unpicklable

_CAN_TELL = hasattr(faulthandler, "register")  # not on Windows
_ANSWER = 2.0  # seconds in which a rank says where it is
_LOOK = 0.05  # seconds between two looks at the clock


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
        fn: a function that can be pickled; with cloudpickle also a lambda or a local function.
        world_size: number of ranks.
        args: passed on, pickled by value.
        backend: of ``torch.distributed``: "gloo" or "nccl".
        start_method: of ``multiprocessing``: "forkserver" (ranks fork from a small clean process),
            "spawn" or "fork".
        connect: makes the process group, called as ``torch.distributed.init_process_group``.
        limit: seconds after which ranks that have not ended are stopped.
        variables: of each rank's environment; an interpreter reads them where it is spawned.
        pipes: an end of a pipe for each rank, which calls ``fn(comm, pipe, *args)``; whoever holds
            the other ends is told by them when a rank has ended.

    Returns:
        how each rank ended, in rank order. Nothing is raised for a rank that failed.

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
    with tempfile.TemporaryDirectory(prefix="distmetrics-") as name:
        folder = Path(name)
        ranks = [
            _RankProcess(context, rank, folder, job, pipes[rank:][:1]) for rank in range(world_size)
        ]
        try:
            for rank in ranks:
                rank.start(variables[rank.rank] if variables else {})
            return _collect(ranks, tombstones_in(file_store(folder)), limit)
        finally:
            end_all([rank.process for rank in ranks if rank.process.pid is not None])


class _RankProcess:
    """The parent's handle on one rank."""

    def __init__(
        self, context: Any, rank: int, folder: Path, job: bytes, pipes: Sequence[Connection]
    ) -> None:
        self.rank = rank
        self.stack = folder / f"stack-{rank}"
        self.stack.touch()
        self.ours, theirs = context.Pipe(duplex=False)
        self._theirs = theirs, *pipes
        args = rank, self.stack, job, *self._theirs
        self.process = context.Process(target=_child, args=args, name=f"rank {rank}")

    def start(self, variables: Mapping[str, str]) -> None:
        """Start the process with these variables; its ends of pipes end with it."""
        before, main = dict(os.environ), vars(sys.modules["__main__"])
        # multiprocessing would run the "file" <stdin> in the new process.
        file = None if has_script() else main.pop("__file__", None)
        try:
            os.environ.update(variables)
            self.process.start()
        finally:
            if file is not None:
                main["__file__"] = file
            os.environ.clear()
            os.environ.update(before)
            for pipe in self._theirs:
                pipe.close()

    def stopped(self, why: str) -> Outcome:
        """Return the end of a rank that is stopped, with the stack of its main thread."""
        error = PeerLostError(f"rank {self.rank} {why}, and was stopped", rank=self.rank)
        if _CAN_TELL and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGUSR1)
            deadline, stack, own = time.monotonic() + _ANSWER, "", ""
            while not own and time.monotonic() < deadline:
                time.sleep(0.02)
                # It is written frame by frame, this module's own after the user's.
                stack, own, _ = self.stack.read_text().partition(f'  File "{__file__}"')
            if stack:  # a process that SIGSTOP has stopped does not answer
                error.add_note(f"rank {self.rank} was here:\n{stack}")
        return Outcome(self.rank, error=error)

    def outcome(self) -> Outcome | None:
        """Return how the rank ended, if it has; a process that ends without a word was killed."""
        is_alive = self.process.is_alive()  # asked first: it may report and end in between
        if self.ours.poll():
            with contextlib.suppress(EOFError):  # it died while it wrote: its exit code tells
                # Unpickling runs the child's code. It came through a pipe that only this process
                # and its child hold, and the child runs this user's code on this machine. What
                # ranks send each other, maybe from another machine, is never read so.
                value, error, trace = pickle.loads(self.ours.recv_bytes())  # noqa: S301
                if error is not None:
                    error.__cause__ = Exception(f"\n{trace}")
                return Outcome(self.rank, value, error)
        if is_alive:
            return None
        self.process.join()
        why = f"rank {self.rank} {exit_reason(self.process.exitcode)}"
        return Outcome(self.rank, error=PeerLostError(why, peers=[self.rank]))


def exit_reason(code: int) -> str:
    """Return in a few words how a process ended."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _collect(
    ranks: Sequence[_RankProcess], tombstones: Tombstones, limit: float | None
) -> list[Outcome]:
    """Wait until every rank has ended; once one has failed, the others have a moment to follow."""
    ended: dict[int, Outcome] = {}
    deadline = math.inf if limit is None else time.monotonic() + limit
    why = f"was still busy after {limit or 0:g} s, the limit of this run"
    while running := [rank for rank in ranks if rank.rank not in ended]:
        wait([handle for rank in running for handle in (rank.ours, rank.process.sentinel)], _LOOK)
        is_over = time.monotonic() > deadline
        for rank in running:
            outcome = rank.outcome() or (rank.stopped(why) if is_over else None)
            if outcome is None:
                continue
            ended[rank.rank] = outcome
            if outcome.error is not None:
                why_it_left = first_line(outcome.error).removeprefix(f"rank {rank.rank} ")
                tombstones.leave_for(rank.rank, why_it_left)
                if time.monotonic() + RAISING_GRACE < deadline:
                    deadline = time.monotonic() + RAISING_GRACE
                    why = f"was still busy {RAISING_GRACE:g} s after another rank had failed"
    return [ended[rank.rank] for rank in ranks]


def join_all(processes: Sequence[Any], seconds: float | None) -> None:
    """Wait until processes have ended, some seconds at most."""
    begun = time.monotonic()
    for process in processes:
        process.join(None if seconds is None else max(0.0, begun + seconds - time.monotonic()))


def end_all(processes: Sequence[Any]) -> None:
    """Kill the processes that still run, and reap all; where reports are wanted, let them write."""
    if current_settings().report is not None:
        for process in processes:
            process.terminate()
        join_all(processes, LAST_WORDS)
    for process in processes:
        process.kill()
        process.join()


def end_with_parent(parent_has_ended: Callable[[], object], folder: Path) -> None:
    """Leave Ctrl-C to the parent; end this process and remove the job's files once it has ended."""

    def watch() -> None:
        parent_has_ended()
        report_all()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, name="parent of distmetrics", daemon=True).start()


def _child(rank: int, stack: Path, job: bytes, out: Connection, *pipes: Connection) -> None:
    """Run in the new process: join the world, run the job, send home how it ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_with_parent(parent.join, stack.parent)
    if _CAN_TELL:  # also in the midst of a call that never returns
        faulthandler.register(signal.SIGUSR1, file=stack.open("w"), all_threads=False)
    try:
        # Our own parent's bytes.
        fn, arguments, world_size, backend, connect, settings = pickle.loads(job)  # noqa: S301
        with put_in_force(settings):
            place, store = own_place(rank, world_size), file_store(stack.parent)
            comm = join_group(place, backend, connect, store)
            # After an error the group is left open: its other ends may hang in it.
            with taking_part(comm):
                value = fn(comm, *pipes, *arguments)
            comm.leave(None)
            dist.destroy_process_group()
        try:
            answer = _packed(value)
        except Exception as problem:  # noqa: BLE001  (any class may raise anything)
            parts = find_unpicklable(value, "result", by_value=False)
            raise InputTypeError(
                f"rank {rank} returned a {type(value).__name__} that can't be sent: {problem}",
                notes=[f"  {part}" for part in parts],
                do="return tensors, numbers, or what can be pickled.",
                rank=rank,
            ) from None
    except BaseException as error:  # noqa: BLE001  (sent home whatever it is)
        try:
            answer = _packed(error=error)
        except Exception:  # noqa: BLE001  (any class may raise anything when it is pickled)
            answer = _packed(error=DistmetricsError(traceback.format_exc(), rank=rank))
        out.send_bytes(answer)
        exit_now()
    out.send_bytes(answer)


def has_script() -> bool:
    """True if other processes can import this ``__main__``: not at a prompt, in ``-c`` or stdin."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return file is not None and Path(file).exists()


def pickled(job: Any) -> bytes:
    """Return a job's pickle; with cloudpickle, what can't be imported travels by value.

    Raises:
        InputTypeError: it cannot be pickled.
    """
    by_value = importlib.util.find_spec("cloudpickle") is not None
    try:
        if has_script() or not by_value:
            return pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if not by_value:
            raise InputTypeError(
                f"this cannot be sent to another process: {error}",
                do="move it to the top level of a module, or pip install cloudpickle.",
            ) from error
    return pickled_by_value(job)


def pickled_by_value(job: Any) -> bytes:
    """Return a pickle that carries the code of functions and classes that can't be imported."""
    import cloudpickle

    class ByValuePickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, part: Any) -> Any:
            # marshal keeps the file's name for tracebacks; cloudpickle leaves it out from 3.1.3 on.
            if isinstance(part, types.CodeType):
                return marshal.loads, (marshal.dumps(part),)
            return super().reducer_override(part)

    data = io.BytesIO()
    ByValuePickler(data).dump(job)
    return data.getvalue()


def _packed(value: Any = None, error: BaseException | None = None) -> bytes:
    trace = "" if error is None else "".join(traceback.format_exception(error))
    data = pickle.dumps((value, error, trace))
    # An exception with a required argument pickles, but does not come back.
    pickle.loads(data)  # noqa: S301
    return data
