"""What a rank has done on one communicator, and what an interrupt has left undone there.

An exception may strike at any moment: Ctrl-C, or the handler of a timer. The user catches it and
goes on, while the other ranks are still in the call that it ended. So each rank keeps, until its
call is over, which rounds of it were sent, and makes the others before its next call begins. And
since nobody knows whether the user will repeat the call or leave it out, the next call tells all
ranks of it, and is refused.
"""

import contextlib
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, TypeVar

from distmetrics.errors import ConfigurationError, DistmetricsError, Site
from distmetrics.liveness.verdict import Verdict

R = TypeVar("R")
_KEPT = 50  # calls that an error lists
_NO_ARGUMENTS = ((),)


@dataclass(slots=True, eq=False)
class Round:
    """One collective of a call.

    Attributes:
        output: the tensors that it fills.
        details: what its transport keeps about it.
        works: what the transport waits for; empty until the round has been sent.
    """

    output: Any = None
    details: Any = None
    works: list[Any] = field(default_factory=list)

    def send(self, start: Callable[[], Any]) -> None:
        """Call ``start``, and keep what it returns.

        An interrupt strikes between two calls that Python code makes, and this is one: where
        ``start`` is no Python function, ``works`` tells for certain whether the round was sent.
        """
        self.works.extend(starmap(start, _NO_ARGUMENTS))


class CallRecord:
    """The calls of one rank on one communicator.

    Attributes:
        calls: how many calls of ours have begun.
        past: hash of what the other ranks must have done as well, besides these calls.
        reads: checksums of what this rank has read of streams, to be compared with the others'.
        direct_calls: the last calls that no function of ours made.
        interrupts: the last calls that an exception ended on this rank.
        told: the history that this rank has sent in a call in which ranks were out of step.
        turn: of the thread that is in a call.
        lock: held where ``turn`` is set.
        making: whether the rounds of a call are under way.
        verdict: why every later call is refused.
    """

    def __init__(self) -> None:
        self.calls = self.past = 0
        self.reads: dict[int, int] = {}
        self.direct_calls: deque[str] = deque(maxlen=_KEPT)
        self.interrupts: deque[str] = deque(maxlen=_KEPT)
        self.told = b""
        self.turn: weakref.ref[Any] | None = None
        self.lock = threading.Lock()
        self.making = False
        self.verdict: Verdict | None = None
        self._unfinished: Callable[[], object] | None = None
        self._rounds: list[Round] = []
        self._place = 0  # of the next round

    def make(self, rounds: Callable[[], R]) -> R:
        """Make a call; ``rounds`` makes its rounds, and may be called again after an interrupt."""
        self.told, self._rounds, self._unfinished = b"", [], rounds
        self.calls += 1
        return self._carry_out(rounds)

    def finish(self) -> None:
        """Make the rounds that are left of a call that was interrupted, and that others are in."""
        rounds = self._unfinished
        if rounds is None:
            return
        if self._rounds and not self._rounds[-1].works:
            self._rounds.pop()
        if self._rounds:  # else no rank has heard of the call, and it is none
            with contextlib.suppress(DistmetricsError):  # raised by the others in that call
                self._carry_out(rounds)
        self._unfinished = None

    def _carry_out(self, rounds: Callable[[], R]) -> R:
        self._place, self.making = 0, True
        try:
            result = rounds()
        except DistmetricsError as error:
            if not isinstance(error, ConfigurationError):  # every rank raises it
                self._unfinished, self._rounds = None, []
            raise
        finally:
            self.making = False
        self._unfinished, self._rounds = None, []
        return result

    def next_round(self) -> Round | None:
        """Return the round that comes next, if it was sent before the call was interrupted."""
        if not self.making or self._place == len(self._rounds):
            return None
        self._place += 1
        return self._rounds[self._place - 1]

    def begin_round(self, output: Any = None, details: Any = None) -> Round:
        """Return a new round, not yet sent."""
        new = Round(output, details)
        if self.making:
            self._rounds.append(new)
            self._place += 1
        return new

    def note_direct_call(self, text: str, site: Site | None) -> None:
        """Add a direct use of the transport, which no frame compares, to what ranks must share."""
        self.past = zlib.crc32(text.encode(), self.past)
        self.direct_calls.append(f"{text}  {site or ''}".rstrip())

    def note_interrupt(self, name: str, site: Site | None, only_on: int | None = None) -> None:
        """Note that an exception ended a call on this rank, the last one that has begun.

        Args:
            name: of the exception.
            site: the user's line.
            only_on: this rank, where the same on others would be no reason to go on.
        """
        self.past = zlib.crc32(f"{name} in call {self.calls} {only_on}".encode(), self.past)
        self.interrupts.append(f"left a call by {name}  {site or ''}".rstrip())
