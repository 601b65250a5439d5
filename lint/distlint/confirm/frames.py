"""Where the code of a file is being executed, told by Python's frames."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType


def frames(path: str) -> Iterator[FrameType]:
    """The frames of a file that are being executed, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == path:
            yield frame
        frame = frame.f_back


def lines(path: str) -> list[int]:
    """Return the lines of a file that are being executed, innermost first."""
    return [frame.f_lineno for frame in frames(path)]
