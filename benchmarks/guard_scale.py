"""What the guard asks of the job's store in large worlds: its own code, and a counting store.

Ranks, clock and store are simulated (tests/guard/simulated.py); what the ranks do is what real
ones do. A rank is late by a minute, or half of them are; counted are the store's calls in each
second.

    python -m benchmarks.guard_scale          # table, and JSON in benchmarks/results
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from benchmarks.common import arguments, write_json
from tests.guard.simulated import Job

WORLDS = (8, 64, 256, 1024, 4096)
SECONDS = 60
# Whom rank 0 waits for is not the point.
logging.getLogger("distmetrics.guard").setLevel(logging.ERROR)
_POLL, _POLL_A_RANK = 0.1, 2.5e-4  # of the listeners, whose looks are reckoned and not simulated


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
    told = [str(rank.verdict) for rank in job.ranks if rank.verdict is not None]
    lines = [line.strip() for line in "".join(told[:1]).splitlines() if line.startswith("  rank")]
    return {
        "world_size": world_size,
        "late": len(late),
        # While all is well each rank looks for questions.
        "quiet": world_size / max(_POLL, world_size * _POLL_A_RANK),
        "most": max(per_second),
        "usual": sorted(per_second[5:SECONDS])[SECONDS // 2],
        "heard": len(told),
        "waiting": world_size - len(late),
        "lines": len(lines),
        "first_line": lines[0] if lines else "",
    }


def main() -> None:
    """Simulate, print and write."""
    args = arguments(__doc__, worlds=(len(WORLDS), 2))
    rows = []
    for size in WORLDS[: args.worlds]:
        for late in ([size - 1], range(size // 2, size)):
            row = simulate(size, late)
            rows.append(row)
            calls = f"quiet {row['quiet']:6.0f}, most {row['most']:6}, usual {row['usual']:6}"
            heard = f"heard by {row['heard']} of {row['waiting']}, {row['lines']} lines"
            print(f"W={size:5} late={row['late']:5}  calls a second: {calls}; {heard}", flush=True)
    if args.is_whole:
        write_json("guard_scale.json", rows)


if __name__ == "__main__":
    main()
