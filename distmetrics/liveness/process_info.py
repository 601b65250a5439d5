"""Where a thread of this process is, and how a process of this machine fares."""

from __future__ import annotations

import functools
import os
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

import torch.distributed as dist

from distmetrics.comm.base import is_library, is_of_python, is_user_code, short_path
from distmetrics.errors import Site

_TORCH_CALLS = str(Path(dist.__file__).parent) + os.sep
_DDP = str(Path(dist.__file__).parents[1] / "nn" / "parallel" / "distributed.py")
_AUTOGRAD = str(Path(dist.__file__).parents[1] / "autograd") + os.sep
_DEPTH = 12  # lines of a stack that are kept
# What the backward pass that a thread is in does, and the name of its process group.
_inside: dict[int, tuple[str, str]] = {}


class Place:
    """Where a thread was at one moment.

    Attributes:
        stack: the user's lines, and those of libraries between them, innermost first.
        at: the innermost of them that is no library's, if there is one.
        doing: the function that the innermost of them is in, if it is not the user's:
            "torch.distributed.all_reduce"; or what :class:`Inside` says of a backward pass.
        group: name of the group, where that is a collective of torch's; empty elsewhere.
    """

    def __init__(self, frame: FrameType | None, inside: tuple[str, str] | None = None) -> None:
        self.stack: list[Site] = []
        self.at: Site | None = None
        self.doing = self.group = ""
        innermost = "" if frame is None else frame.f_code.co_filename
        if frame is not None and innermost == _DDP:
            self._name_wrapper(frame)
        elif inside is not None and innermost.startswith(_AUTOGRAD):  # and not in a hook's code
            self.doing, self.group = inside
        while frame is not None and len(self.stack) < _DEPTH:
            file, name = frame.f_code.co_filename, frame.f_code.co_name
            if is_user_code(file) and not is_of_python(file):
                self.stack.append(Site(short_path(file), frame.f_lineno, name))
                if self.at is None and not is_library(file):
                    self.at = self.stack[-1]
            elif not self.stack and file.startswith(_TORCH_CALLS):
                self._name_call(frame, name)
            frame = frame.f_back

    def _name_wrapper(self, frame: FrameType) -> None:
        """Name what DistributedDataParallel does itself before the forward: it syncs buffers."""
        self.doing = "DistributedDataParallel, before the model's forward"
        group = getattr(frame.f_locals.get("self"), "process_group", None)
        self.group = str(getattr(group, "group_name", ""))

    def _name_call(self, frame: FrameType, name: str) -> None:
        if name.startswith("_") or name == "wrapper" or not hasattr(dist, name):
            return
        self.doing = f"torch.distributed.{name}"
        if "group" in frame.f_locals:
            group = frame.f_locals["group"] or dist.group.WORLD
            self.group = str(getattr(group, "group_name", ""))

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
    return Place(sys._current_frames().get(thread), _inside.get(thread))


class Inside(AbstractContextManager[None]):
    """Says that this thread's backward pass is a collective, which no frame of Python shows.

    Made once, and entered in each step.

    Args:
        doing: what it is.
        group: name of the process group.
    """

    def __init__(self, doing: str, group: str) -> None:
        self._inside = doing, group

    def __enter__(self) -> None:
        _inside[threading.get_ident()] = self._inside

    def __exit__(self, *_: object) -> None:
        _inside.pop(threading.get_ident(), None)


@functools.cache
def machine() -> str:
    """Return a name of the machine or container in which a process number is unique, or ""."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no Linux
        return ""


def this_process() -> tuple[int, str]:
    """Return this process's number, and when it was born: numbers are given again."""
    return os.getpid(), _stat(os.getpid())[1]


def process_state(pid: int, born: str) -> str:
    """Return "gone", "stopped" or "alive" for a process of this machine."""
    letter, birth = _stat(pid)
    if birth != born or letter in "ZX":
        return "gone"
    return "stopped" if letter == "T" else "alive"


def _stat(pid: int) -> tuple[str, str]:
    """Return a process's state letter and the time of its birth."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", ""
    return fields[0], fields[19]
