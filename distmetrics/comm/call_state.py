"""What one rank has done on one transport."""

from __future__ import annotations

import threading
import weakref
import zlib
from collections import deque
from typing import Any

from distmetrics.comm.verdict import Verdict
from distmetrics.errors import Site

_KEPT = 50  # direct calls that an error lists


class CallState:
    """The calls that one rank has made on one transport.

    Attributes:
        count: how many calls of ours have begun.
        past: hash of what the other ranks must have done as well, besides these calls.
        reads: checksums of what this rank has read of streams, to be compared with the others'.
        uneven_lines: each rank's line of the last calls, since ranks were last at one line.
        left: how this rank has left calls before it exchanged data in them.
        direct_calls: the last calls that no function of ours made.
        verdict: why every later call is refused.
        lock: held where ``holder`` is set.
        holder: the call that is under way.
        refusal: why later calls are refused once the call under way is over.
    """

    def __init__(self) -> None:
        self.count = self.past = 0
        self.reads: dict[int, int] = {}
        self.uneven_lines: list[list[Site | None]] = []
        self.left: list[str] = []
        self.direct_calls: deque[str] = deque(maxlen=_KEPT)
        self.verdict: Verdict | None = None
        self.lock = threading.Lock()
        self.holder: weakref.ref[Any] | None = None
        self.refusal: Verdict | None = None

    def note_direct_call(self, text: str, site: Site | None) -> None:
        """Add a direct use of the transport, which no header compares, to what ranks must share."""
        self.past = zlib.crc32(text.encode(), self.past)
        self.direct_calls.append(f"{text}  {site or ''}".rstrip())

    def note_left(self, error: str, site: Site | None) -> None:
        """Note that an error ended a call of this rank before data were exchanged."""
        self.past = zlib.crc32(f"{error} before call {self.count + 1}".encode(), self.past)
        self.left = [*self.left[1 - _KEPT :], f"left a call by {error}  {site or ''}".rstrip()]
