"""How a fault strikes the rank that runs this code, and where a metric's methods begin."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from distmetrics.comm.base import Communicator
from distmetrics.comm.threads import is_of_threads
from distmetrics.errors import ConfigurationError
from distmetrics.testing.faults.fault import METHODS, Fault, RankKilled


def strike(fault: Fault, comm: Communicator) -> None:
    """Let a fault strike this rank, whose communicator is ``comm``."""
    if fault.kind == "delay" or (fault.kind == "stop" and is_of_threads(comm)):
        time.sleep(fault.seconds)
    elif fault.kind == "raises":
        raise fault.raised()
    elif fault.kind == "kill":
        if is_of_threads(comm):
            raise RankKilled(f"rank {fault.rank} was killed at {fault.at}")
        _check_own_process(fault)
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind == "stop":
        _check_own_process(fault)
        _freeze(fault.seconds)


def _check_own_process(fault: Fault) -> None:
    if multiprocessing.parent_process() is None:
        raise ConfigurationError(
            f"{fault}: this rank is no process that the kit has started, and the fault would "
            "strike the test itself",
            do="run it with distmetrics.testing.run(..., backend='gloo', faults=[...]).",
        )


def _freeze(seconds: float) -> None:
    """Stop this process, with all its threads; another one wakes it up."""
    script = f"sleep {seconds:g}; kill -CONT {os.getpid()}"
    with subprocess.Popen(["/bin/sh", "-c", script]):  # noqa: S603  (numbers only)
        os.kill(os.getpid(), signal.SIGSTOP)


@contextlib.contextmanager
def methods_watched(reach: Callable[[str], None]) -> Iterator[None]:
    """Call ``reach("update")`` when a metric's update begins on this thread, whatever library it is
    of; or compute.
    """
    before = sys.getprofile()

    def notice(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_name in METHODS and _is_metric(frame):
            reach(frame.f_code.co_name)

    sys.setprofile(notice)
    try:
        yield
    finally:
        sys.setprofile(before)


def _is_metric(frame: FrameType) -> bool:
    if not frame.f_code.co_argcount:
        return False
    kind = type(frame.f_locals.get(frame.f_code.co_varnames[0]))
    return all(callable(getattr(kind, method, None)) for method in METHODS)
