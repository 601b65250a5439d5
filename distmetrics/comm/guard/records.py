"""What a rank did last, as a file that a post-mortem reads."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distmetrics.comm.guard.inquiry import Self
from distmetrics.comm.guard.places import Place
from distmetrics.errors import DistmetricsError

if TYPE_CHECKING:
    from distmetrics.comm.guard.wait import Wait

SCHEMA = 1


def write_report(
    folder: Path, me: Self, calls: Iterable[Wait], error: DistmetricsError | None, place: Place
) -> Path:
    """Write ``rank-<r>.json``: this rank's last calls, where it is, and the error that it raises,
    if it does.
    """
    told = None
    if error is not None:
        site = None if error.site is None else str(error.site)
        told = {
            "kind": type(error).__name__,
            "code": error.code,
            "text": str(error),
            "peers": error.peers,
            "site": site,
        }
    content = {
        "schema": SCHEMA,
        "rank": me.rank,
        "world_size": me.world_size,
        "host": os.uname().nodename if hasattr(os, "uname") else "",
        "pid": me.pid,
        "written": time.time(),
        "error": told,
        "where": [str(site) for site in place.stack],
        "calls": [_call(wait, me.world) for wait in calls],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{me.rank}.json"
    half = path.with_suffix(".part")
    half.write_text(json.dumps(content))
    half.replace(path)
    return path


def _call(wait: Wait, world: str) -> dict[str, Any]:
    return {
        "number": wait.number,
        "group": "world" if wait.group == world else wait.group,
        "op": wait.call.op,
        "detail": wait.call.detail,
        "site": None if wait.call.site is None else str(wait.call.site),
        "started": wait.started,
        "ended": wait.ended,
    }
