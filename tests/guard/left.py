"""Files that no job left, as the guard writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

START = 1_763_785_000.0
TOLD = 'ranks are in different places\n\n  rank 0  all_gather "val/f1"\n  rank 1  elsewhere'


def call(
    number: int, started: float, ended: float | None, op: str = 'all_reduce "loss"', **more: Any
) -> dict[str, Any]:
    """Make a call; times are seconds after START."""
    made = {"number": number, "group": "world", "op": op, "detail": "float32[]", "site": "train.py:6 in step"}
    return made | {"started": START + started, "ended": None if ended is None else START + ended, **more}


def left(rank: int, world_size: int, calls: Iterable[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Make what a rank leaves."""
    made = {"schema": 1, "rank": rank, "world_size": world_size, "host": "node0", "pid": 4000 + rank}
    where = ["train.py:81 in load", "train.py:12 in main"]
    return made | {"written": START + 40.0, "error": None, "where": where, "calls": list(calls), **more}


def steps(count: int) -> list[dict[str, Any]]:
    """Make calls that all ranks made: one every 50 ms."""
    return [call(n, 0.05 * n, 0.05 * n + 0.02) for n in range(1, count + 1)]


def guarded(world_size: int, absent: Iterable[int] = (1,)) -> list[dict[str, Any]]:
    """Make the files of a job in which some ranks do not come to call 17, and the others wait in vain."""
    found = [left(rank, world_size, steps(16)) for rank in range(world_size)]
    site = "train.py:8 in main"
    for one in found:
        if one["rank"] not in absent:
            one["calls"].append(call(17, 0.9, None, 'all_gather "val/f1"', detail="float32[10]", site=site))
            one["error"] = {"kind": "DivergedError", "code": "diverged", "text": TOLD, "peers": [1], "site": site}
            one["where"] = [site, "train.py:12 in main"]
    return found


def leave(folder: Path, reports: Iterable[dict[str, Any]]) -> Path:
    """Write the files of a job into a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for report in reports:
        (folder / f"rank-{report['rank']}.json").write_text(json.dumps(report))
    return folder
