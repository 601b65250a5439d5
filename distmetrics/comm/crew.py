"""Threads that are used again, so that a world of threads need not start its own each time.

A thread that was told to end in the middle of its work is not used again.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType

_LAST = 1.0  # seconds at the end for a thread that has no more work


class Crew:
    """Threads for worlds that follow each other; they end with the block.

    What a rank leaves in a ``threading.local`` is forgotten, as at the end of a thread of its own.

    >>> from distmetrics.comm.threads import ThreadWorld
    >>> with Crew() as crew:
    ...     [ThreadWorld(2, crew=crew).run(lambda comm: comm.rank + step) for step in range(2)]
    [[0, 1], [1, 2]]
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._idle: list[_Hand] = []
        self._closed = False

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, name: str, act: Callable[[], None]) -> Shift:
        """Let a thread do something; return what tells when it is done."""
        with self.lock:
            hand = self._idle.pop() if self._idle else None
        hand = hand or _Hand(self)
        shift = Shift(self, name, act, hand.ident or 0)
        hand.work.put(shift)
        return shift

    def take_back(self, hand: _Hand, shift: Shift, *, whole: bool) -> bool:
        """Note that a shift is over; return whether its thread goes on, if it is ``whole``."""
        with self.lock:
            shift.ended = True
            goes_on = whole and not (shift.abandoned or self._closed)
            if goes_on:
                self._idle.append(hand)
        shift.over.release()
        return goes_on

    def close(self) -> None:
        """End the threads that have nothing to do, and the others when they are done."""
        with self.lock:
            self._closed = True
            hands, self._idle = self._idle, []
        for hand in hands:
            hand.work.put(None)
        for hand in hands:
            hand.join(_LAST)


class Shift:
    """One thing that a thread of a crew does.

    Attributes:
        ident: of the thread.
        ended: whether it is over; ``abandoned``: whether it was told to end; ``over``: free once it
            is over.
    """

    def __init__(self, crew: Crew, name: str, act: Callable[[], None], ident: int) -> None:
        self.name, self.act, self.ident = name, act, ident
        self.ended = self.abandoned = False
        self.over = threading.Lock()
        self.over.acquire()
        self._crew = crew

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end."""
        if self.over.acquire(timeout=-1 if timeout is None else timeout):
            self.over.release()

    def abandon(self, error: type[BaseException]) -> None:
        """Raise an exception in the thread, where it runs Python code, unless the shift is over."""
        with self._crew.lock:
            if not self.ended:
                self.abandoned = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.ident), ctypes.py_object(error)
                )


def _forget() -> None:
    """Forget what this thread keeps in any ``threading.local``: the interpreter has it in one dict,
    a thread's own.
    """
    address = _thread_dict()
    if address:
        names: dict[object, object] = ctypes.cast(
            address, ctypes.py_object
        ).value  # borrowed, and held from here on
        names.clear()


_thread_dict = ctypes.pythonapi.PyThreadState_GetDict
_thread_dict.restype = ctypes.c_void_p  # not py_object, which takes the reference that is only lent


class _Hand(threading.Thread):
    """A thread of a crew."""

    def __init__(self, crew: Crew) -> None:
        super().__init__(daemon=True)
        self.work: SimpleQueue[Shift | None] = SimpleQueue()
        self._crew = crew
        self.start()

    def run(self) -> None:
        goes_on = True
        while goes_on and (shift := self.work.get()) is not None:
            self.name = shift.name
            try:
                shift.act()
            except BaseException:
                self._crew.take_back(self, shift, whole=False)
                raise
            _forget()
            goes_on = self._crew.take_back(self, shift, whole=True)
            del shift  # and with it what the rank's function holds
