"""The end of a process: it says something before SIGTERM ends it, and it ends at all.

Python runs a signal's handler in the main thread, between two steps of Python code. In a collective
that nobody answers it never does. So the interpreter's own handler, in C, writes the signal's
number to a pipe, which a thread reads. A process whose torch waits for such a collective does not
end by itself either.
"""

import atexit
import ctypes
import faulthandler
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from distmetrics.call_site import call_site

# Seconds that a process has to end, once its group has broken: all of its end; and what follows the
# functions that are called at exit, where its exit code is that of an exception anyway.
_END, _LAST_STEP = 10.0, 1.0
_words: list[Callable[[], None]] = []  # called before SIGTERM ends the process
_pipe: list[int] = []  # its write end
_must_end: list[bool] = []
_exit = sys.exit
_exits: list[SystemExit] = []  # the last one with an exit code of failure


def say_before_sigterm(say: Callable[[], None]) -> None:
    """Call a function, from any thread and perhaps twice, before SIGTERM ends the process.

    If the user has a handler, that one decides what becomes of the process. Nothing is done if the
    user ignores the signal, if other C code handles it, or in a thread that is not the main one.
    """
    theirs = signal.getsignal(signal.SIGTERM)
    if not in_main_thread() or not (theirs == signal.SIG_DFL or callable(theirs)):
        return
    if not _pipe:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        _pipe.append(write_end)
        name = "distmetrics: last words"
        threading.Thread(target=_read, args=(read_end,), name=name, daemon=True).start()
    _words.append(say)
    _listen(True)


def say_no_more(say: Callable[[], None]) -> None:
    """Undo :func:`say_before_sigterm`, as far as this thread can."""
    if say in _words:
        _words.remove(say)
    _listen(bool(_words))


def _listen(on: bool) -> None:
    """Hear of the signal or not; the pipe is left to somebody else who uses it, such as asyncio."""
    if not (_pipe and in_main_thread()):
        return
    in_use = signal.set_wakeup_fd(_pipe[0] if on else -1, warn_on_full_buffer=False)
    if in_use not in (-1, _pipe[0]):
        signal.set_wakeup_fd(in_use)
    handler = signal.getsignal(signal.SIGTERM)
    if on and handler == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)
    elif not on and handler == _end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _read(read_end: int) -> None:
    while number := os.read(read_end, 1):
        if number[0] == signal.SIGTERM:
            _end()
    os.close(read_end)


def _end(*_: object) -> None:
    """Say the last words; end as the signal would have, if that is for us to do."""
    for say in [*_words]:
        say()
    if signal.getsignal(signal.SIGTERM) == _end:
        # signal.signal() can be called in the main thread alone.
        ctypes.pythonapi.PyOS_setsig(signal.SIGTERM, ctypes.c_void_p(signal.SIG_DFL))
        os.kill(os.getpid(), signal.SIGTERM)


def _in_child() -> None:
    """Put back what was there, also where it was another thread that has forked."""
    _words.clear()
    _listen(False)
    while _pipe:
        os.close(_pipe.pop())


if hasattr(os, "register_at_fork"):
    # A signal to the child must end it, and is none to its parent.
    os.register_at_fork(
        before=lambda: _listen(False),
        after_in_parent=lambda: _listen(bool(_words)),
        after_in_child=_in_child,
    )


def note_exits(on: bool) -> None:
    """Keep what ``sys.exit`` raises, or no more: Python forgets it before it ends the process."""
    if sys.exit in (_exit, _noted_exit):
        sys.exit = _noted_exit if on else _exit


def forget_exits() -> None:
    """Note that the script goes on: it has caught what ``sys.exit`` raised."""
    _exits.clear()


@functools.wraps(_exit)
def _noted_exit(status: Any = None) -> NoReturn:
    try:
        _exit(status)
    except SystemExit as exit_:
        if exit_.code and in_main_thread():
            exit_.site = call_site()  # type: ignore[attr-defined]  # its traceback is lost
            _exits[:] = [exit_]
        raise


def what_ended() -> BaseException | None:
    """Return what ended the script, once it has: an error, or ``sys.exit`` of a failure."""
    raised: BaseException | None = getattr(sys, "last_value", None)
    return raised or next(iter(_exits), None)


def end_surely() -> None:
    """Make sure that the process comes to its end: torch waits for calls that nobody answers."""
    if not _must_end:
        _must_end.append(True)
        atexit.register(_end_within, _END)


@atexit.register  # with this module, so that it is called after what is registered later
def _end_soon() -> None:
    if _must_end and getattr(sys, "last_value", None) is not None:
        _end_within(_LAST_STEP)


def _end_within(seconds: float) -> None:
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115  (faulthandler holds it)
    faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)


def in_main_thread() -> bool:
    """True in the thread in which alone handlers of signals can be set."""
    return threading.current_thread() is threading.main_thread()
