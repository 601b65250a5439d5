"""Files that no job left: as the guard writes them, and as many as a postmortem must bear."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

START = 1_763_785_000.0


def call(
    number: int, started: float, ended: float | None, op: str = 'all_reduce "loss"', **more: Any
) -> dict[str, Any]:
    """Make a call; times are seconds after START."""
    return {
        "number": number,
        "group": "world",
        "op": op,
        "detail": "float32[]",
        "site": "train.py:6 in step",
        "started": START + started,
        "ended": None if ended is None else START + ended,
        **more,
    }


def error(kind: str = "DivergedError", code: str = "diverged", text: str = "", **more: Any) -> dict[str, Any]:
    text = text or 'ranks are in different places\n\n  rank 0  all_gather "val/f1"\n  rank 1  elsewhere'
    return {"kind": kind, "code": code, "text": text, "peers": [1], "site": "train.py:8 in main", **more}


def left(rank: int, world_size: int, calls: Iterable[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Make what a rank leaves."""
    return {
        "schema": 1,
        "rank": rank,
        "world_size": world_size,
        "host": "node0",
        "pid": 4000 + rank,
        "written": START + 40.0,
        "error": None,
        "where": ["train.py:81 in load", "train.py:12 in main"],
        "calls": list(calls),
        **more,
    }


def steps(count: int, *, slow: float = 0.0, detail: str = "float32[]") -> list[dict[str, Any]]:
    """Make calls that all ranks made: one every 50 ms, which a slow rank comes to later."""
    return [
        call(n, 0.05 * n + slow, 0.05 * n + 0.02, detail=detail, site="train.py:6 in step") for n in range(1, count + 1)
    ]


def guarded(world_size: int, absent: Iterable[int] = (1,), ranks_of_a_host: int = 0) -> list[dict[str, Any]]:
    """Make the files of a job in which some ranks do not come to call 17, and the others wait in vain."""
    absent = set(absent)
    found = []
    for rank in range(world_size):
        host = rank // ranks_of_a_host if ranks_of_a_host else 0
        calls = steps(16, slow=0.0001 * (rank % 7))
        more: dict[str, Any] = {"host": f"node{host}", "written": START + 31.0}
        if rank not in absent:
            site = "train.py:8 in main"
            calls.append(call(17, 0.9, None, 'all_gather "val/f1"', detail="float32[10]", site=site))
            more |= {"error": error(), "where": [site, "train.py:12 in main"]}
        found.append(left(rank, world_size, calls, **more))
    return found


def grouped() -> list[dict[str, Any]]:
    """Make the files of a job of 8 ranks with groups, a rank that raised and one without a file."""
    found = guarded(8, absent=(2, 5), ranks_of_a_host=4)
    for one in found:
        rows = f"rows {one['rank'] % 2}"
        one["calls"][8:8] = [call(n, 0.42 + n / 100, 0.425 + n / 100, group=rows) for n in (1, 2)]
    found[2]["error"] = error("ValueError", "", "no such class", site="data.py:31 in label", peers=[])
    return [one for one in found if one["rank"] != 6]


def unlike(world_size: int) -> list[dict[str, Any]]:
    """Make the files of a job no two ranks of which are alike: other shapes, lines and errors."""
    found = []
    for rank in range(world_size):
        made = [call(n, 0.05 * n, 0.05 * n + 0.02, detail=f"float32[{rank}]", site=f"f.py:{rank}") for n in (1, 2, 3)]
        own = error("ValueError", "", f"rank {rank}: " + "a long story " * 100, peers=[])
        found.append(left(rank, world_size, made, error=own, where=[f"file_{rank}.py:{rank} in f"]))
    return found


def leave(folder: Path, reports: Iterable[dict[str, Any]]) -> Path:
    """Write the files of a job into a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for report in reports:
        (folder / f"rank-{report['rank']}.json").write_text(json.dumps(report))
    return folder
