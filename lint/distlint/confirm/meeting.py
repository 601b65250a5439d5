"""Where the ranks meet: collectives, and the end of the function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distlint.confirm.frames import frames, lines
from distlint.confirm.stand_ins import key_of


class StoppedError(BaseException):
    """Ends a rank where the guard has stopped it; not even ``except Exception`` lets it go on."""


class Meeting:
    """One rank's part in the collectives of a run.

    Args:
        path: of the file.
        comm: the rank's end of the world.
        muted: lines whose collectives are left out.
        counts_logs: whether what is logged without a collective must be the same on all ranks, too.

    Attributes:
        count: collectives so far.
        reached: lines of the file on the way to some collective.
        last: lines on the way to the last collective.
        here: its own line.
        stopped: why the guard has stopped this rank.
    """

    def __init__(self, path: str, comm: Any, muted: frozenset[int], counts_logs: bool) -> None:
        self.count = 0
        self.reached: set[int] = set()
        self.last: set[int] = set()
        self.here = 0
        self.stopped: BaseException | None = None
        self._path = path
        self._comm = comm
        self._muted = muted
        self._counts_logs = counts_logs
        self._logged: dict[str, set[int]] = {}
        self._marks: dict[int, object] = {}

    def in_order(self, values: list[Any]) -> Iterator[Any]:
        """Go through values in an order of this rank's own; collectives meanwhile are for the value at hand."""
        number = len(self._marks)
        try:
            for value in values:
                self._marks[number] = key_of(value)
                yield value
        finally:
            self._marks.pop(number, None)

    def meet(self, label: str, args: tuple[Any, ...] = ()) -> None:
        """Make a collective: wait for the other ranks, who must make the same."""
        from distmetrics.comm.base import Call, in_call
        from distmetrics.errors import Site

        way = lines(self._path)
        if way and way[0] in self._muted:
            return
        self.count += 1
        self.last, self.here = set(way), next(iter(way), 0)
        self.reached |= self.last
        marks = tuple(self._marks.values()) if args else ()
        site = next((Site(self._path, each.f_lineno, each.f_code.co_name) for each in frames(self._path)), None)
        try:
            with in_call(Call(label, "of another item of a set" if marks else "", site, (label, marks))):
                self._comm.barrier()
        except Exception as error:
            self.stopped = error
            raise StoppedError from error

    def log(self, names: list[str]) -> None:
        """Note what is logged without a collective."""
        for name in names if self._counts_logs else ():
            self._logged.setdefault(name, set()).update(lines(self._path))

    def finish(self) -> None:
        """Come to the end of the function; what was logged must be the same everywhere."""
        names = ", ".join(sorted(self._logged))
        logged = set().union(*self._logged.values())
        try:
            self.meet(f"the end, having logged {names}" if names else "the end")
        finally:
            self.last |= logged
            self.reached |= logged
