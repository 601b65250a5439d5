"""What ranks tell each other through the store: small texts, one shape each. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Waiting:
    """That a rank waits in a collective.

    Attributes:
        number: of this rank's waits: another number is another wait.
        group: name of the process group.
        members: its ranks, as ranks of the job, in short: "0-1, 3-1023".
        call: how many collectives this group has made, this one included.
        kind: the transport's operation, which must be the same on all ranks.
        text: the call in the user's terms, with its line.
        alone: whether the main thread has made all calls of this rank: one of several threads that
            waits says nothing of the others.
    """

    number: int
    group: str
    members: str
    call: int
    kind: str
    text: str
    alone: bool = True

    @property
    def place(self) -> tuple[str, int]:
        """The call that this rank is in: ranks in the same place wait for each other rightly."""
        return self.group, self.call


@dataclass(frozen=True, slots=True)
class Slip:
    """What a rank has published of itself: where its process is, and what it waits for, if it does."""

    machine: str
    pid: int
    born: str
    waiting: Waiting | None = None

    def encode(self) -> str:
        """Write it for the store."""
        waiting = self.waiting
        parts = None if waiting is None else [getattr(waiting, name) for name in Waiting.__slots__]
        return json.dumps([self.machine, self.pid, self.born, parts])

    @classmethod
    def decode(cls, text: str) -> Slip:
        """Read what :meth:`encode` wrote."""
        machine, pid, born, parts = json.loads(text)
        return cls(machine, pid, born, None if parts is None else Waiting(*parts))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank answers when it is asked where it is.

    Attributes:
        question: the number of the question, which counts those put to this rank.
        waits: the number of the wait that it is in, or 0 where it is in none.
        where: the user's line, and what it does there.
        foreign: the group of a collective of torch's own that it is in, where that can be told: not
            our call, so nobody counts it.
        stack: the user's lines, innermost first.
    """

    question: int
    waits: int = 0
    where: str = ""
    foreign: str = ""
    stack: tuple[str, ...] = field(default=())

    def encode(self) -> str:
        """Write it for the store."""
        return json.dumps([self.question, self.waits, self.where, self.foreign, self.stack])

    @classmethod
    def decode(cls, text: str) -> Answer:
        """Read what :meth:`encode` wrote."""
        question, waits, where, foreign, stack = json.loads(text)
        return cls(question, waits, where, foreign, tuple(stack))


def ranks_in(text: str) -> tuple[int, ...]:
    """Read ranks back from :func:`~distmetrics.errors.rank_ranges`.

    >>> ranks_in("0-1, 3"), ranks_in("")
    ((0, 1, 3), ())
    """
    spans = [part.split("-") for part in text.split(", ") if part]
    return tuple(rank for span in spans for rank in range(int(span[0]), int(span[-1]) + 1))
