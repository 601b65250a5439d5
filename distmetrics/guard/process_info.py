"""Where a thread of this process is, and how a process of this machine fares."""

import functools
import math
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import torch.distributed as dist

from distmetrics.call_site import is_library, is_of_python, is_user_code, short_path
from distmetrics.errors import Site
from distmetrics.message import Message

_TORCH_CALLS = str(Path(dist.__file__).parent) + os.sep
_DDP = str(Path(dist.__file__).parents[1] / "nn" / "parallel" / "distributed.py")
_AUTOGRAD = str(Path(dist.__file__).parents[1] / "autograd") + os.sep
_PUBLIC = {name for name in dir(dist) if not name.startswith("_")}
_DEPTH = 12  # lines of a stack that are kept
_STILL = 0.01  # part of the time for which a thread that only waits may use the processor


class Place:
    """Where a thread was at one moment.

    Attributes:
        stack: the user's lines, and those of libraries between them, innermost first.
        at: the innermost of them that is no library's.
        doing: what it is in there: "torch.distributed.all_reduce", or "a backward pass".
    """

    def __init__(self, frame: FrameType | None) -> None:
        self.stack: list[Site] = []
        self.at: Site | None = None
        self.doing = ""
        innermost = "" if frame is None else frame.f_code.co_filename
        if innermost == _DDP:  # it makes buffers alike
            self.doing = "DistributedDataParallel, before the model's forward"
        elif innermost.startswith(_AUTOGRAD):  # and not in a hook's code
            self.doing = "a backward pass"
        while frame is not None and len(self.stack) < _DEPTH:
            file, name = frame.f_code.co_filename, frame.f_code.co_name
            if is_user_code(file) and not is_of_python(file):
                self.stack.append(Site(short_path(file), frame.f_lineno, name))
                if self.at is None and not is_library(file):
                    self.at = self.stack[-1]
            elif not self.stack and file.startswith(_TORCH_CALLS) and name in _PUBLIC:
                self.doing = f"torch.distributed.{name}"
            frame = frame.f_back

    @property
    def waits_for_all(self) -> bool:
        """True in code of torch's that may wait for all ranks, not just for one."""
        return bool(self.doing) and not ("send" in self.doing or "recv" in self.doing)

    def __str__(self) -> str:
        if not self.stack:
            return f"is in {self.doing}" if self.doing else "is in no code of the user's"
        at = self.at or self.stack[0]
        if self.doing:
            return f"is in {self.doing}  {at}"
        inside = "" if at == self.stack[0] else f", inside {self.stack[0]}"
        return f"is at {at}{inside}"


def place_of(thread: int) -> Place:
    """Return where the thread of this process with that ident is."""
    return Place(sys._current_frames().get(thread))


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
