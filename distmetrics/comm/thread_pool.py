"""Threads that are used again, so that a world of threads need not start its own each time.

A thread that was told to end in the middle of its work is not used again.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from queue import SimpleQueue

_LAST = 1.0  # seconds at the end for a thread that has no more work


class ThreadPool:
    """Threads for worlds that follow each other; they end with the block.

    What a rank leaves in a ``threading.local`` is forgotten, as at the end of a thread of its own.

    >>> from distmetrics.comm.threads import ThreadWorld
    >>> with ThreadPool() as pool:
    ...     [ThreadWorld(2, pool=pool).run(lambda comm: comm.rank + step) for step in range(2)]
    [[0, 1], [1, 2]]
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._idle: list[Worker] = []
        self._closed = False

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, name: str, fn: Callable[[], None]) -> Task:
        """Call a function in a thread; return what tells when it is done."""
        with self.lock:
            worker = self._idle.pop() if self._idle else None
        worker = worker or Worker(self)
        task = Task(self, name, fn, worker.ident or 0)
        worker.tasks.put(task)
        return task

    def take_back(self, worker: Worker, task: Task, *, whole: bool) -> bool:
        """Note that a task is over; return True if its thread, if it is ``whole``, goes on."""
        with self.lock:
            goes_on = whole and not (task.abandoned or self._closed)
            if goes_on:
                self._idle.append(worker)
            task.over.set()
        return goes_on

    def close(self) -> None:
        """End the threads that have nothing to do, and the others when they are done."""
        with self.lock:
            self._closed = True
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.tasks.put(None)
        for worker in workers:
            worker.join(_LAST)


class Task:
    """One function call in a thread of a pool.

    Attributes:
        name: of the thread meanwhile.
        fn: the function.
        ident: of the thread.
        over: set once it is over.
        abandoned: whether it was told to end.
    """

    def __init__(self, pool: ThreadPool, name: str, fn: Callable[[], None], ident: int) -> None:
        self.name, self.fn, self.ident = name, fn, ident
        self.over = threading.Event()
        self.abandoned = False
        self._pool = pool

    def abandon(self, error: type[BaseException]) -> None:
        """Raise an exception in the thread, where it runs Python code, unless the task is over."""
        with self._pool.lock:
            if not self.over.is_set():
                self.abandoned = True
                ident = ctypes.c_ulong(self.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(error))


class Worker(threading.Thread):
    """A thread of a pool."""

    def __init__(self, pool: ThreadPool) -> None:
        super().__init__(daemon=True)
        self.tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._pool = pool
        self.start()

    def run(self) -> None:
        """Do tasks until there are no more, or one has left this thread in pieces."""
        goes_on = True
        while goes_on and (task := self.tasks.get()) is not None:
            self.name = task.name
            whole = False
            try:
                task.fn()
                _forget_locals()
                whole = True
            finally:
                goes_on = self._pool.take_back(self, task, whole=whole)
            del task  # and with it what the rank's function holds


_thread_dict = ctypes.pythonapi.PyThreadState_GetDict
_thread_dict.restype = ctypes.c_void_p  # not py_object, which takes the reference that is only lent


def _forget_locals() -> None:
    """Forget what this thread keeps in any ``threading.local``: it is in a dict of the thread."""
    address = _thread_dict()
    if address:
        # Lent by the interpreter, and held from here on.
        names: dict[object, object] = ctypes.cast(address, ctypes.py_object).value
        names.clear()
