"""What a rank tells of itself: lines of JSON in a file of its own.

The parent reads them while the rank runs or hangs.

Times are of the monotonic clock, which the processes of one machine share.
"""

from __future__ import annotations

import json
import os
import re
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["ENDS", "Event", "Log", "read", "text_of"]

Event = dict[str, Any]
ENDS = ("raised", "done")  # after one of these a rank has nothing more to tell
_LONG = 4000  # characters of an error
_NATIVE = re.compile(
    r"\n?Exception raised from .*?(?=\n\nThe cause of it:|\Z)", re.DOTALL
)  # torch's stack in C++


class Log:
    """Where one rank writes."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"rank-{rank}.jsonl"

    def write(self, kind: str, **facts: Any) -> None:
        """Append an event; it is in the file when this returns, whatever becomes of the process."""
        line = json.dumps({"time": time.monotonic(), "kind": kind, **facts}) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)


def read(folder: Path, rank: int) -> list[Event]:
    """Return what a rank has written so far."""
    path = Log(folder, rank).path
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def text_of(error: BaseException) -> str:
    """Return the text and notes of an error and of its causes, without the stack."""
    texts = ["".join(traceback.format_exception_only(one)).strip() for one in _chain(error)]
    return _NATIVE.sub("", "\n\nThe cause of it:\n".join(texts)).strip()[:_LONG]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
