"""What a rank did last: its calls, and a file of them that a post-mortem reads."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distmetrics.comm.base import Call
from distmetrics.errors import DistmetricsError
from distmetrics.liveness.process_info import Place
from distmetrics.liveness.rank_status import Identity
from distmetrics.liveness.verdict import Verdict

SCHEMA = 1


@dataclass(slots=True, eq=False)
class PendingCall:
    """One call of a transport on this rank, from when it was begun until it is over.

    Attributes:
        call: in the user's terms.
        group: name of the process group.
        members: its ranks of the job, in short.
        number: how many calls this group has made, this one included.
        kind: the transport's operation.
        started: when it was begun, in seconds since 1970.
        ended: when it was over, or None.
        serial: number among this rank's calls over all groups.
        watched: whether the watchdog has been asked why it lasts.
        warned: whether the log has its verdict.
        verdict: why it can't end, once that is known.
    """

    call: Call
    group: str
    members: str
    number: int
    kind: str
    started: float = field(default_factory=time.time)
    ended: float | None = None
    serial: int = 0
    watched: bool = False
    warned: bool = False
    verdict: Verdict | None = None


def write_report(
    folder: Path,
    me: Identity,
    calls: Iterable[PendingCall],
    error: DistmetricsError | None,
    place: Place,
) -> None:
    """Write ``rank-<r>.json``: this rank's last calls, where it is, and what it raises."""
    content = {
        "schema": SCHEMA,
        "rank": me.rank,
        "world_size": me.world_size,
        "host": os.uname().nodename if hasattr(os, "uname") else "",
        "pid": me.pid,
        "written": time.time(),
        "error": None if error is None else _error(error),
        "where": [str(site) for site in place.stack],
        "calls": [_call(pending, me.world) for pending in calls],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{me.rank}.json"
    half = path.with_suffix(".part")
    half.write_text(json.dumps(content))
    half.replace(path)


def _error(error: DistmetricsError) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "code": error.code,
        "text": str(error),
        "peers": error.peers,
        "site": None if error.site is None else str(error.site),
    }


def _call(pending: PendingCall, world: str) -> dict[str, Any]:
    call = pending.call
    return {
        "number": pending.number,
        "group": "world" if pending.group == world else pending.group,
        "op": call.op,
        "detail": call.detail,
        "site": None if call.site is None else str(call.site),
        "started": pending.started,
        "ended": pending.ended,
    }
