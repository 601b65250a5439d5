"""What the guard asks of the job's store in large worlds: its own code, and a counting store.

Ranks, clock and store are simulated (tests/guard/simulated.py); what the ranks do is what real
ones do. A rank is late by a minute, or half of them are; counted are the store's calls in each
second.

    python -m benchmarks.guard_scale          # table, and JSON in benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from typing import Any

from benchmarks.sync import RESULTS
from tests.guard.simulated import Job

WORLDS = (8, 64, 256, 1024, 4096)
SECONDS = 60
logging.getLogger("distmetrics.guard").setLevel(
    logging.ERROR
)  # whom rank 0 waits for is not the point
_POLL, _POLL_A_RANK = 0.1, 2.5e-4  # of the listeners, whose looks are reckoned and not simulated


def quiet(world_size: int) -> float:
    """Return the store's calls a second while all is well: each rank looks for questions."""
    return world_size / max(_POLL, world_size * _POLL_A_RANK)


def simulate(world_size: int, late: Sequence[int]) -> dict[str, Any]:
    """Return the store's calls, but for the listeners', while all but ``late`` wait a minute."""
    job = Job(world_size)
    for rank in job.ranks:
        if rank.rank not in late:
            rank.wait(timeout=SECONDS)
    per_second = []
    for _ in range(SECONDS + 5):
        before = sum(job.store.calls.values())
        job.run(1)
        per_second.append(sum(job.store.calls.values()) - before)
    told = [rank.verdict for rank in job.ranks if rank.diagnosis is not None]
    heard = sum(verdict is not None for verdict in told)
    first = next((str(verdict) for verdict in told if verdict is not None), "")
    lines = [line.strip() for line in first.splitlines() if line.startswith("  rank")]
    return {
        "world_size": world_size,
        "late": len(late),
        "quiet": quiet(world_size),
        "most": max(per_second),
        "usual": sorted(per_second[5:SECONDS])[SECONDS // 2],
        "heard": heard,
        "waiting": world_size - len(late),
        "lines": len(lines),
        "first_line": lines[0] if lines else "",
    }


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, nargs="+", default=WORLDS)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    args = parser.parse_args()
    rows = []
    for world_size in args.worlds:
        for late in ([world_size - 1], range(world_size // 2, world_size)):
            rows.append(row := simulate(world_size, late))
            print(
                f"W={row['world_size']:5} late={row['late']:5}  calls a second: quiet "
                f"{row['quiet']:6.0f}, "
                f"most {row['most']:6}, usual {row['usual']:6}; heard by {row['heard']} of "
                f"{row['waiting']}, "
                f"{row['lines']} lines: {row['first_line'][:70]}",
                flush=True,
            )
    if not args.dry:
        (RESULTS / "guard_scale.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
