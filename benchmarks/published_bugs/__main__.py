"""Run the published bugs: in the way of their threads, with a layout, and in one process.

python -m benchmarks.published_bugs                    # all; writes results/published_bugs.json
python -m benchmarks.published_bugs --only torchtitan  # a part, printed only
"""

from __future__ import annotations

import re
from typing import Any

from benchmarks.common import RESULTS, parser, write_json
from benchmarks.published_bugs import counted_twice, left_out
from benchmarks.published_bugs.bug import Bug, Seen, look

KEPT = RESULTS / "published_bugs.json"
BUGS: tuple[Bug, ...] = (
    counted_twice.EvalLoss(),
    counted_twice.Predictions(),
    counted_twice.TokensSeen(),
    counted_twice.NumTokens(),
    counted_twice.StepTokens(),
    counted_twice.RepeatedWeights(),
    left_out.EvalSequences(),
    left_out.MinusOne(),
    left_out.NoLoss(),
    left_out.LossScale(),
    left_out.PromptAlone(),
    left_out.MeanOfMeans(),
    left_out.ExpertNorm(),
)


def row(seen: Seen) -> dict[str, Any]:
    """Return what a run has shown, as it is kept and printed."""
    return {
        "thread": seen.bug.thread,
        "mesh": seen.bug.mesh,
        "naive": _written(seen.naive[0]),
        "ours": _written(seen.ours[0]) if seen.is_right else str(seen.ours),
        "single": _written(seen.single),
        "warning": seen.warned[0].partition(":")[0] if seen.warned else "",
        "refused": all(text is not None for text in seen.refused) and bool(seen.refused),
    }


def _written(number: float | str) -> str:
    if isinstance(number, str):
        return number
    return f"{number:,.0f}" if number.is_integer() and abs(number) > 9 else f"{number:.6g}"


def main() -> int:
    """Run, print, write JSON; the exit code says whether every rank was right."""
    ask = parser(__doc__)
    ask.add_argument("--only", default="")
    args = ask.parse_args()
    chosen = [bug for bug in BUGS if re.search(args.only, bug.thread)]
    rows, right = [], True
    for bug in chosen:
        seen = look(bug)
        right = right and seen.is_right
        rows.append(row(seen))
        told = rows[-1]
        print(f"{told['thread']}  ({told['mesh']})")
        print(f"  naive {told['naive']}   ours {told['ours']}   one process {told['single']}")
        if bug.held_twice:
            print(f"  flat sync: {told['warning']}; said to be shards: refused {told['refused']}")
    if not args.only:
        write_json(KEPT.name, rows)
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
