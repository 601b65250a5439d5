"""A rank writes its report before SIGTERM ends it, also in C code that never returns.

Python runs a signal's handler in the main thread, between two steps of Python code. In a collective
that nobody answers there are none. So the interpreter's own handler, in C, also writes the signal's
number to a pipe, which a thread reads.
"""

import os
import signal
import threading
from collections.abc import Callable

_pipe: list[int] = []  # its write end
_reports: list[Callable[[], None]] = []


def report_before_sigterm(report: Callable[[], None]) -> None:
    """Call a function, from any thread and perhaps twice, before SIGTERM ends the process.

    It is set once a process. If the user has a handler, that one decides what becomes of the
    process. Nothing is done if the user ignores the signal, if other C code handles it, or in a
    thread that is not the main one.
    """
    theirs = signal.getsignal(signal.SIGTERM)
    if _pipe or not _in_main_thread() or not (theirs == signal.SIG_DFL or callable(theirs)):
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    _pipe.append(write_end)
    _reports.append(report)
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
    _reports[0]()
    if signal.getsignal(signal.SIGTERM) == _end:
        os._exit(128 + signal.SIGTERM)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
