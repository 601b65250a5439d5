"""What ranks tell each other through the store: small texts, one shape each. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Wait:
    """What a rank waits in: one call of a process group.

    Attributes:
        serial: number of this rank's call over all groups: another number is another wait.
        group: name of the process group.
        members: its ranks, as ranks of the job, in short: "0-1, 3-1023".
        number: how many collectives this group has made, this one included.
        kind: the transport's operation, which must be the same on all ranks.
        text: the call in the user's terms, with its line.
        alone: whether this rank goes on in one thread: one of several threads that waits says
            nothing of the others. Its background counts while its main thread waits for that.
        issued: how many collectives this rank had issued on the group before this call, ours and
            torch's own; None where the group's backend does not count them.
        counts_exactly: whether the group counts collectives alone. Gloo counts sends and receives
            between two ranks as well.
    """

    serial: int
    group: str
    members: str
    number: int
    kind: str
    text: str
    alone: bool = True
    issued: int | None = None
    counts_exactly: bool = False

    @property
    def place(self) -> str:
        """The call that this rank is in: ranks in the same place wait for each other rightly."""
        return f"{self.group}/{self.number}"


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What a rank has published of itself: where its process is, and what it waits in, if it does.

    Attributes:
        machine: name of the machine or container, in which ``pid`` means a process.
        pid: of its process.
        born: when that began: process numbers are given again.
        wait: what it waits in, or None.
    """

    machine: str
    pid: int
    born: str
    wait: Wait | None = None

    @classmethod
    def decode(cls, text: str | bytes) -> RankStatus:
        """Read what :func:`encode` wrote."""
        values = json.loads(text)
        wait = values.pop("wait")
        return cls(**values, wait=None if wait is None else Wait(**wait))


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this rank is: in the job, and as a process; ``world`` names the group of all ranks."""

    rank: int
    world_size: int
    machine: str
    pid: int
    born: str
    world: str

    def status(self, wait: Wait | None) -> RankStatus:
        """Return what this rank publishes while it waits, or while it does not."""
        return RankStatus(self.machine, self.pid, self.born, wait)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rank answers when it is asked where it is.

    Attributes:
        question: the number of the question, which counts those put to this rank.
        waits: the serial number of the wait that it is in, or 0 where it is in none.
        where: the user's line, and what it does there.
        still: seconds for which it has stood in a collective of torch's own, or in a backward pass,
            without using the processor; 0 elsewhere.
        issued: by the names of groups, how many collectives it has issued: ours, and torch's own.
        calls: by the names of groups, how many of them were calls of ours.
    """

    question: int
    waits: int = 0
    where: str = ""
    still: float = 0.0
    issued: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def decode(cls, text: str | bytes) -> Answer:
        """Read what :func:`encode` wrote."""
        return cls(**json.loads(text))


def encode(value: RankStatus | Answer) -> str:
    """Write a value for the store."""
    return json.dumps(asdict(value))
