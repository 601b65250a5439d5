"""Where a thread of this process is, and how a process of this machine fares."""

import functools
import math
import os
import threading
import time
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import NamedTuple, Self

import torch
import torch.distributed as dist
from torch.nn import parallel

from distmetrics.call_site import is_library, users_line, users_lines
from distmetrics.errors import Site
from distmetrics.message import Message

_TORCH_CALLS = str(Path(dist.__file__).parent) + os.sep
# Code of torch's whose C++ code may wait for the other ranks; the second before a model's forward.
_IN_C = torch.autograd.__path__[0], parallel.distributed.__file__
_PUBLIC = {name for name in dir(dist) if not name.startswith("_")}
DEPTH = 12  # lines of a stack that are kept
_STILL = 0.01  # part of the time for which a thread that only waits may use the processor


class Place(NamedTuple):
    """Where a thread was at one moment."""

    stack: list[Site]  # the user's lines; of a library's between them the innermost
    at: Site | None  # the innermost of them that is no library's
    doing: str  # there: "torch.distributed.all_reduce", say

    @classmethod
    def of(cls, innermost: FrameType | None) -> Self:
        """Return where a thread with this innermost frame is."""
        frames = [*walk_stack(innermost)] if innermost else []
        own = [pair for pair in frames if not is_library(pair[0].f_code.co_filename)]
        at, doing = next(iter(users_lines(own)), None), ""
        for frame, line in frames:
            file, name = frame.f_code.co_filename, frame.f_code.co_name
            if users_line(frame, line):
                break
            if frame is innermost and file.startswith(_IN_C):  # and not in a hook's code
                doing = "a backward pass or DistributedDataParallel"
            elif file.startswith(_TORCH_CALLS) and name in _PUBLIC:
                doing = f"torch.distributed.{name}"
        return cls(users_lines(frames)[:DEPTH], at, doing)

    @property
    def waits_for_all(self) -> bool:
        """True in code of torch's that may wait for all ranks, not just for one."""
        return bool(self.doing) and not ("send" in self.doing or "recv" in self.doing)

    def __str__(self) -> str:
        at = self.at or (self.stack[0] if self.stack else "")
        if self.doing:
            return f"is in {self.doing}  {at}".rstrip()
        return f"is at {at}" if at else "is in no code of the user's"


class Stillness:
    """Tells for how long the main thread has stood at one place without using the processor."""

    def __init__(self) -> None:
        self._place = ""
        self._since = self._used = 0.0

    def seconds(self, place: str) -> float:
        """Return it for where the thread is now; 0 where the system does not tell its time."""
        now, used = time.monotonic(), _processor_time()
        is_still = place == self._place and used - self._used <= _STILL * (now - self._since)
        if not is_still:
            self._place, self._since, self._used = place, now, used
        return now - self._since


def _processor_time() -> float:
    """Return the seconds for which the main thread has used a processor."""
    ident = threading.main_thread().ident
    if ident is None or not hasattr(time, "pthread_getcpuclockid"):  # not on macOS and Windows
        return math.inf
    return time.clock_gettime(time.pthread_getcpuclockid(ident))


class ProcessId(Message, frozen=True):
    """A process of the job: numbers are given again, and mean a process on its machine alone."""

    machine: str  # or container; "" if the system does not tell
    pid: int
    born: str


@functools.cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no Linux
        return ""


def this_process() -> ProcessId:
    """Return the process that calls."""
    return ProcessId(_machine(), os.getpid(), _stat(os.getpid())[1])


def process_state(process: ProcessId) -> str:
    """Return "gone", "stopped" or "alive" for a process of this machine, else "elsewhere"."""
    if process.machine != _machine() or not process.machine:
        return "elsewhere"
    letter, born = _stat(process.pid)
    if born != process.born or letter in "ZX":
        return "gone"
    return "stopped" if letter == "T" else "alive"


def _stat(pid: int) -> tuple[str, str]:
    """Return a process's state letter and the time of its birth."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", ""
    return fields[0], fields[19]
