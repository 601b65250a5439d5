"""What a rank did last: its calls over all groups."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from distmetrics.comm.process_group import Calls, PendingCall
from distmetrics.guard.process_info import Place

_KEPT = 50  # calls that a report has


class CallLog(Calls):
    """The last calls of this rank over all its groups, and the thread that made the last one."""

    def __init__(self) -> None:
        self.calls: deque[PendingCall] = deque(maxlen=_KEPT)
        self.counts: dict[str, int] = {}  # of calls, by group
        self.serial = 0  # of the last call
        self.counters: dict[str, Callable[[], int]] = {}  # of collectives, by group
        self.counts_exactly: dict[str, bool] = {}  # whether these are no sends and receives
        self.over = threading.Event()  # set once a call is over about which the guard was asked
        self._thread: threading.Thread = threading.main_thread()  # of the last call
        self._main_only = True
        self._background: set[threading.Thread] = set()  # that make calls for another one
        self._main_awaits_them = False

    def count_by(self, group: str, issued: Callable[[], int], exactly: bool) -> None:
        """Let ``issued`` count the collectives of a group; ``exactly``: without sends."""
        self.counters[group], self.counts_exactly[group] = issued, exactly

    def begin_call(self, pending: PendingCall) -> None:
        """Note that this thread begins a call."""
        if threading.current_thread() not in self._background:
            self._thread = threading.current_thread()
            self._main_only &= self._thread is threading.main_thread()
        self.serial += 1
        pending.serial = self.serial
        self.counts[pending.group] = pending.number
        self.calls.append(pending)

    def end_call(self, pending: PendingCall, *, begun: bool) -> None:
        """Note that a call is over, or was never begun."""
        pending.ended = time.time()
        self.counts[pending.group] = pending.number - (not begun)
        if pending.watched:
            self.over.set()

    def begin(self, thread: threading.Thread) -> None:
        """Note that this thread, of the background, is about to make a call."""
        self._background.add(thread)

    def end(self) -> None:
        """Note that the call of the thread that runs is over."""
        self._background.discard(threading.current_thread())

    def wait(self, over: threading.Event) -> None:
        """Wait until something in the background is over."""
        self._main_awaits_them = threading.current_thread() is threading.main_thread()
        try:
            over.wait()
        finally:
            self._main_awaits_them = False

    @property
    def alone(self) -> bool:
        """True if this rank goes on in one thread: in its main thread, or while that waits."""
        return self._main_only and (not self._background or self._main_awaits_them)

    def waits(self) -> int:
        """Return the serial of this rank's call, or 0; negative where another thread may go on."""
        serial = max((call.serial for call in [*self.calls] if call.ended is None), default=0)
        return serial if self.alone else -serial

    def issued(self) -> dict[str, int]:
        """Return how many collectives this rank has issued on each group that counts them."""
        return {name: count() for name, count in [*self.counters.items()]}

    def place(self) -> Place:
        """Return where the thread is that has made the last call, none of the background."""
        return Place.of(sys._current_frames().get(self._thread.ident or 0))
