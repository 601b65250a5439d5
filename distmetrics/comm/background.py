"""Calls that a rank makes in its background, while its own thread goes on.

They go over a communicator of their own, so that ranks need not take them between the same calls of
their main threads; and one after the other, so that all ranks take them in the same order.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from distmetrics.call_site import begun_at, call_site
from distmetrics.comm.communicator import Communicator, Tasks
from distmetrics.comm.verdict import what_ended
from distmetrics.errors import in_short

R = TypeVar("R")
_MOST = 8  # calls that may be under way


class _ThreadQueue(threading.local):
    def __init__(self) -> None:
        self.queue: deque[Handle[Any]] = deque(maxlen=_MOST)  # what this thread has begun


_of_thread = _ThreadQueue()


class Handle(Generic[R]):
    """A call under way in the background; who first asks for its result hands that to ``then``."""

    def __init__(self, tasks: Tasks, then: Callable[[R], None] | None) -> None:
        self._tasks, self._then = tasks, then
        self.over = threading.Event()
        self.results: list[R] = []
        self.error: BaseException | None = None  # that the call has raised, once it is over
        self.is_heard = False  # whether somebody has asked for the result

    def result(self) -> R:
        """Return what the call has given, and wait for it if need be; or raise its error."""
        self.wait()
        self.is_heard = True
        if self.error is not None:
            raise self.error
        then, self._then = self._then, None
        if then is not None:
            then(self.results[0])
        return self.results[0]

    def wait(self) -> None:
        """Wait until the call is over, however it ends."""
        self._tasks.wait(self.over)

    def tell_unheard(self) -> None:
        """Tell of an error, or a result for somebody else, that nobody has asked for."""
        if not self.is_heard and (self.error is not None or self._then is not None):
            what = "nobody has asked for the result of a call in the background: it goes nowhere"
            if self.error is not None:
                what = f"a call in the background has failed: {in_short(self.error)}"
            warnings.warn(f"{what}. Ask for its result().", stacklevel=3)
        self.is_heard = True

    def __del__(self) -> None:
        self.tell_unheard()


def start(
    make: Callable[[Communicator], R],
    comm: Communicator,
    then: Callable[[R], None] | None = None,
) -> Handle[R]:
    """Make a call in this rank's background, after those that it has begun before.

    Every rank must, in the same order. Where many are under way this waits for the first of them.
    """
    twin, queue = comm.background(), _of_thread.queue
    if not queue and threading.current_thread() is threading.main_thread():
        # What is registered last comes first: then the guard tells that this rank has left.
        atexit.register(_finish_script, os.getpid())
    if len(queue) == _MOST:
        queue[0].wait()
    site, tasks = call_site(), twin.whole.transport.tasks
    before, handle = queue[-1] if queue else None, Handle(tasks, then)
    stream: torch.cuda.Stream | None = None
    if twin.device.type == "cuda":  # which may still have to compute what the call reads
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())

    def run() -> None:
        try:
            begun_at(site)
            if before is not None:
                before.over.wait()
            # Where it is given no stream, torch's own would begin to use a device all the same.
            with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
                handle.results.append(make(twin))
            if stream is not None:
                stream.synchronize()
        except BaseException as error:  # noqa: BLE001  (raised by result())
            handle.error = error
        finally:
            handle.over.set()
            tasks.end()

    thread = threading.Thread(target=run, name="distmetrics background", daemon=True)
    tasks.begin(thread)
    try:
        thread.start()
    except KeyError as error:  # Python's own, where an exception from outside strikes in it
        raise (error.__context__ or error) from None
    queue.append(handle)
    return handle


def finish() -> None:
    """Wait until all is over that this thread has begun: the other ranks need it too."""
    for handle in [*_of_thread.queue]:
        handle.wait()


def _finish_script(pid: int) -> None:
    """Wait at the end of a script; not of one that has failed, which the others must hear of."""
    if os.getpid() == pid and what_ended() is None:  # a forked child has none of these threads
        finish()
        for handle in _of_thread.queue:
            handle.tell_unheard()  # the queue holds it still, so that nothing else would tell
