"""How many rows count of the batches that this thread is reading from our loaders."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_reading = threading.local()  # a rank of a ThreadWorld is a thread


class Rows:
    """How many rows of a batch count, None for all; compared by identity."""

    def __init__(self, count: int | None) -> None:
        self.count = count


@contextmanager
def being_read(count: int | None) -> Iterator[None]:
    """Let ``fresh`` keep ``count`` rows of the batch inside the block; None keeps all."""
    stack: list[Rows] = _reading.__dict__.setdefault("stack", [])
    mine = Rows(count)
    stack.append(mine)
    try:
        yield
    finally:
        stack.remove(mine)  # not always the last: loaders that are zipped take turns


def rows_being_read() -> Rows | None:
    """Return the rows of the innermost batch that is being read, if there is one."""
    stack: list[Rows] = _reading.__dict__.get("stack", [])
    return stack[-1] if stack else None
