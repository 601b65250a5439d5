"""What a rank leaves once something has gone wrong: a file that a post-mortem reads.

It is written also before SIGTERM ends the rank, in C code that never returns. Python runs a
signal's handler in the main thread, between two steps of Python code. In a collective that nobody
answers there are none. So the interpreter's own handler, in C, also writes the signal's number to a
pipe, which a thread reads.
"""

import logging
import os
import platform
import signal
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_stack, walk_tb
from typing import Annotated, Final, Literal

import msgspec

from distmetrics.call_site import raise_sites, users_lines
from distmetrics.comm.process_group import PendingCall, is_connection_error
from distmetrics.errors import DistmetricsError, Site
from distmetrics.guard.call_log import CallLog
from distmetrics.guard.process_info import DEPTH
from distmetrics.guard.settings import REPORT
from distmetrics.guard.store import Identity
from distmetrics.message import encode

SCHEMA: Final = 1
_LET_DOWN = ("diverged", "peer-lost", "connection")  # codes of errors that another rank began
_log = logging.getLogger("distmetrics.guard")
_pipe: list[int] = []  # the write end of SIGTERM's


@dataclass(frozen=True, slots=True)
class ReportedCall:
    """One collective call of a rank; times by the clock of its host."""

    number: int  # of the user's calls on the group, the same on all its ranks
    group: str
    op: str  # with its name: all_gather "val/f1"
    detail: str  # float32[10]
    site: str
    started: float
    ended: float | None  # None while the rank waited
    part: int = 1  # which of the call's collectives


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that a rank raised.

    Ranks that raised the same have peers, which it is about, and a place of their own.
    """

    kind: str
    code: str
    text: str
    peers: tuple[int, ...] = field(compare=False)
    site: str = field(compare=False)

    @property
    def let_down(self) -> bool:
        """True if another rank began it."""
        return self.code in _LET_DOWN


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank left behind: its stack in the user's code, innermost first, and last calls."""

    schema: Literal[1]
    rank: int
    world_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]  # more are a mistake
    host: str
    pid: int
    written: float
    error: Failure | None
    where: tuple[str, ...]
    calls: tuple[ReportedCall, ...]

    @property
    def stuck(self) -> list[ReportedCall]:
        """The calls that it never got out of."""
        return [call for call in self.calls if call.ended is None]


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
        stack = self._log.place().stack if error is None else _stack(error) or sites
        where = tuple(map(str, stack))
        calls = tuple(_reported(pending, me.world) for pending in [*self._log.calls])
        failure = _failure(error, str(sites[0]) if sites else "")
        now = platform.node(), me.process.pid, time.time()
        return RankReport(SCHEMA, me.rank, me.world_size, *now, failure, where, calls)


def _stack(error: BaseException) -> list[Site]:
    """Return the user's lines that led to an error, also those that it has yet to pass."""
    raised = error.__traceback__
    above = sys._getframe(1) if raised is None else raised.tb_frame.f_back
    frames = [*walk_tb(raised)][::-1] + ([*walk_stack(above)] if above else [])
    return users_lines(frames)[:DEPTH]


def _failure(error: BaseException | None, site: str) -> Failure | None:
    """Return a rank's error; what a user or a launcher interrupts has none of its own."""
    if not isinstance(error, Exception | SystemExit):
        return None
    kind, text = type(error).__name__, str(error)
    if isinstance(error, DistmetricsError):
        return Failure(kind, error.code, text, error.peers, site)
    return Failure(kind, "connection" if is_connection_error(error) else "", text, (), site)


def _reported(pending: PendingCall, world: str) -> ReportedCall:
    call = pending.call
    group = "world" if pending.group == world else pending.group
    site, times = str(call.site or ""), (pending.started, pending.ended)
    number, part = pending.users
    return ReportedCall(number, group, call.op, call.detail, site, *times, part)


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
