"""What a rank did last: its calls, and a file of them that a post-mortem reads."""

import logging
import os
import platform
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from distmetrics.call_site import raise_sites
from distmetrics.comm.work import Calls, PendingCall, is_connection_error
from distmetrics.errors import DistmetricsError
from distmetrics.guard.postmortem import SCHEMA, Failure, RankReport, ReportedCall
from distmetrics.guard.process_info import Place
from distmetrics.guard.settings import REPORT
from distmetrics.guard.store import Identity
from distmetrics.message import encode

_KEPT = 50  # calls that a report has
_log = logging.getLogger("distmetrics.guard")


class CallLog(Calls):
    """The last calls of this rank over all its groups, and the thread that made the last one."""

    def __init__(self) -> None:
        self.calls: deque[PendingCall] = deque(maxlen=_KEPT)
        self.counts: dict[str, int] = {}  # of calls, by group
        self.serial = 0  # of the last call
        self.counters: dict[str, Callable[[], int]] = {}  # of collectives, by group
        self.counts_exactly: dict[str, bool] = {}  # whether these are no sends and receives
        self.over = threading.Event()  # set once a call is over about which the guard was asked
        self._main_only = True
        self._background: set[threading.Thread] = set()  # that make calls for another one
        self._main_awaits_them = False

    def count_by(self, group: str, issued: Callable[[], int], exactly: bool) -> None:
        """Let ``issued`` count the collectives of a group; ``exactly``: without sends."""
        self.counters[group], self.counts_exactly[group] = issued, exactly

    def begin_call(self, pending: PendingCall) -> None:
        """Note that this thread begins a call."""
        if threading.current_thread() not in {threading.main_thread(), *self._background}:
            self._main_only = False
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
        self._main_awaits_them = _in_main_thread()
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
        """Return where the main thread is."""
        return Place.of(sys._current_frames().get(threading.main_thread().ident or 0))


class ReportWriter:
    """Writes a rank's report, if a folder is wanted; an error stands until its next call."""

    def __init__(self, folder: Path | None, me: Identity, log: CallLog) -> None:
        self._folder, self._me, self._log = folder, me, log
        self._error_at = -1  # the last call before the error that the report tells of
        self._lock = threading.RLock()  # SIGTERM may come in the midst of it
        _writers.add(self)

    def write(self, error: BaseException | None = None) -> None:
        """Write where this rank is, or the error that it raises."""
        if self._folder is None or os.getpid() != self._me.process.pid:
            return
        with self._lock:
            if self._error_at == self._log.serial:
                return
            if isinstance(error, Exception):  # an exit or an interrupt may follow from an error
                self._error_at = self._log.serial
            half = self._folder / f"rank-{self._me.rank}.part"
            data = encode(self._report(error), msgspec.json.encode)
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                half.touch(mode=0o600)
                half.write_bytes(data)
                half.replace(half.with_suffix(".json"))
            except OSError as failure:  # of the folder: the user's error must still be raised
                text = "rank %d can't write its report into the folder of %s: %s"
                _log.warning(text, self._me.rank, REPORT, failure)

    def _report(self, error: BaseException | None) -> RankReport:
        me, sites = self._me, [] if error is None else raise_sites(error)
        where = tuple(map(str, sites or self._log.place().stack))
        calls = tuple(_reported(pending, me.world) for pending in [*self._log.calls])
        failure = _failure(error, str(sites[0]) if sites else "")
        now = platform.node(), me.process.pid, time.time()
        return RankReport(SCHEMA, me.rank, me.world_size, *now, failure, where, calls)


def _failure(error: BaseException | None, site: str) -> Failure | None:
    """Return a rank's error; what a user or a launcher interrupts has none of its own."""
    if not isinstance(error, Exception | SystemExit):
        return None
    code = "connection" if is_connection_error(error) else ""
    if isinstance(error, DistmetricsError):
        code = error.code
    return Failure(type(error).__name__, code, str(error), getattr(error, "peers", ()), site)


def _reported(pending: PendingCall, world: str) -> ReportedCall:
    call = pending.call
    group = "world" if pending.group == world else pending.group
    site, times = str(call.site or ""), (pending.started, pending.ended)
    return ReportedCall(pending.number, group, call.op, call.detail, site, *times)


# A rank writes its report before SIGTERM ends it, also in C code that never returns. Python runs a
# signal's handler in the main thread, between two steps of Python code. In a collective that nobody
# answers there are none. So the interpreter's own handler, in C, also writes the signal's number to
# a pipe, which a thread reads.
_pipe: list[int] = []  # its write end
_writers: weakref.WeakSet[ReportWriter] = weakref.WeakSet()


def report_all() -> None:
    """Write this rank's report, where one is wanted: the process is about to be ended."""
    for writer in [*_writers]:
        writer.write()


def report_before_sigterm() -> None:
    """Write the report, from any thread and perhaps twice, before SIGTERM ends the process.

    It is set once a process. If the user has a handler, that one decides what becomes of the
    process. Nothing is done if the user ignores the signal, if other C code handles it, or in a
    thread that is not the main one.
    """
    if _pipe or not _in_main_thread() or signal.getsignal(signal.SIGTERM) in (signal.SIG_IGN, None):
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    _pipe.append(write_end)
    threading.Thread(
        target=_read, args=(read_end,), name="distmetrics SIGTERM", daemon=True
    ).start()
    # A signal to a forked child must end it, and is none to its parent.
    os.register_at_fork(
        before=lambda: _listen(False),
        after_in_parent=lambda: _listen(True),
        after_in_child=_forget,
    )
    _listen(True)


def _listen(on: bool) -> None:
    """Hear of the signal or not; the pipe is left to somebody else who uses it, such as asyncio."""
    if not (_pipe and _in_main_thread()):
        return
    in_use = signal.set_wakeup_fd(_pipe[0] if on else -1, warn_on_full_buffer=False)
    if in_use not in (-1, _pipe[0]):
        signal.set_wakeup_fd(in_use)
    handler = signal.getsignal(signal.SIGTERM)
    if on and handler == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)
    elif not on and handler == _end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _forget() -> None:
    _listen(False)  # set still, where another thread than the main one has forked
    _pipe.clear()


def _read(read_end: int) -> None:
    while number := os.read(read_end, 1):
        if number[0] == signal.SIGTERM:
            _end()


def _end(*_: object) -> None:
    """Write the report, and end the process, if that is for us to do."""
    report_all()
    if signal.getsignal(signal.SIGTERM) == _end:
        os._exit(128 + signal.SIGTERM)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
