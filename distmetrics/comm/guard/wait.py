"""One call of a transport, as the guard keeps it."""

from __future__ import annotations

import time

from distmetrics.comm.base import Call
from distmetrics.comm.guard.inquiry import Inquiry


class Wait:
    """One call of a transport, from when it was begun until it is over.

    Attributes:
        call: in the user's terms.
        group: name of the process group.
        members: its ranks of the job, in short.
        number: how many calls this group has made, this one included.
        kind: the transport's operation.
        started: when it was begun, in seconds since 1970.
        ended: when it was over, or None.
    """

    __slots__ = (
        "call",
        "ended",
        "group",
        "inquiry",
        "kind",
        "looked",
        "members",
        "number",
        "serial",
        "started",
        "told",
    )

    def __init__(self, call: Call, group: str, members: str, number: int, kind: str) -> None:
        self.call = call
        self.group = group
        self.members = members
        self.number = number
        self.kind = kind
        self.started = time.time()
        self.ended: float | None = None
        self.serial = 0
        self.looked = self.told = False
        self.inquiry: Inquiry | None = None
