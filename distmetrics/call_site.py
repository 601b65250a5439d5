"""Where in the user's code a call came from."""

import functools
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from traceback import walk_tb
from types import FrameType

import torch

from distmetrics.errors import Site

_PACKAGE = str(Path(__file__).resolve().parent) + os.sep
_OWN_TOOLS = _PACKAGE + "cli" + os.sep  # the demo is user code that happens to ship with us
# Frames between a user's line and ours: `backward()` enters through torch, a compiled function
# through code that torch has made, `with synced(…)` through Python's contextlib.
_BETWEEN = (_PACKAGE, str(Path(torch.__file__).parent) + os.sep, "<eval_with_key>")
_GENERATED = "torchinductor_"  # part of the folder
_STANDARD = str(Path(os.__file__).parent) + os.sep


class _ThreadSite(threading.local):
    site: Site | None = None  # the line that has begun what a thread of ours makes


_of_thread = _ThreadSite()


def begun_at(site: Site | None) -> None:
    """Take a line for the caller where this thread, one of ours, has none of the user's."""
    _of_thread.site = site


def call_site() -> Site | None:
    """Return the nearest caller outside distmetrics: the line that a user must look at."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if site := users_line(frame, frame.f_lineno):
            return site
        frame = frame.f_back
    return _of_thread.site


def users_line(frame: FrameType, line: int) -> Site | None:
    """Return a line of a frame, if it is the user's."""
    file = frame.f_code.co_filename
    if _is_users(file):
        return Site(short_path(file), line, frame.f_code.co_name)
    return None


def users_lines(frames: Iterable[tuple[FrameType, int]]) -> list[Site]:
    """Return the user's lines among frames; of a library's that follow each other, the first."""
    lines, in_library = [], False
    for frame, line in frames:
        if site := users_line(frame, line):
            follows, in_library = in_library, is_library(frame.f_code.co_filename)
            if not (follows and in_library):
                lines.append(site)
    return lines


def raise_sites(error: BaseException) -> list[Site]:
    """Return the user's lines that an exception passed through, innermost first; else its own."""
    own = getattr(error, "site", None)
    lines = users_lines([*walk_tb(error.__traceback__)][::-1])
    return lines or ([own] if isinstance(own, Site) else [])


@functools.lru_cache(maxsize=4096)
def _is_users(file: str) -> bool:
    """True if a file's lines are the user's: neither ours, nor torch's, nor Python's."""
    if file.startswith(_STANDARD) and not is_library(file):
        return False
    is_between = file.startswith(_BETWEEN) or _GENERATED in file
    return not is_between or file.startswith(_OWN_TOOLS)


def is_library(file: str) -> bool:
    """True for a file that was installed, and is none of the user's own."""
    return any(part in file for part in ("site-packages", "dist-packages"))


@functools.lru_cache(maxsize=4096)
def short_path(file: str) -> str:
    """Return a file as people know it: from where the job was started, or its folder and name."""
    here = Path.cwd()
    path = Path(file)
    return str(path.relative_to(here)) if path.is_relative_to(here) else "/".join(path.parts[-2:])
