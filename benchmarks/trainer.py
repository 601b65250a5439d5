"""What a trainer costs against a raw loop of DDP: a step, the first step, and logging.

Every way drives the same tiny model on the same data, in two processes that torchrun starts; the
ways take turns, round by round. A tiny model, for what a trainer adds to a step is the same for a
large one. Within a way, blocks of 25 steps take turns with 25 of the raw loop, in the same
processes, and what a step takes over a raw one is told block by block: what a busy machine adds is
in both. The raw loop held against itself shows what is left of the noise.

    python -m benchmarks.trainer                 # table, and JSON in benchmarks/results
    python -m benchmarks.trainer --rounds 1 --ways raw distmetrics
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"
WAYS = ("raw", "distmetrics", "fabric", "lightning")
NAMES = (0, 1, 20, 200)
Times = dict[str, float]


def train(way: str, names: int, steps: int, out: Path) -> Times:
    """Run one way under torchrun; returns rank 0's times in seconds."""
    ranks = [way, str(names), str(steps), repr(time.perf_counter()), str(out)]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
    ]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "benchmarks.trainer_ranks", *ranks],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stderr}")
    times: Times = json.loads(out.read_text())
    return times


def measure(
    ways: list[str], names: list[int], steps: int, rounds: int
) -> dict[str, dict[int, Times]]:
    """Return the median of each time, for each way and number of names; of "over" the ends too."""
    seen: dict[str, dict[int, list[Times]]] = {way: {count: [] for count in names} for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for count in names:
                for way in ways:
                    seen[way][count].append(train(way, count, steps, Path(folder) / "times.json"))
    return {
        way: {
            count: {key: statistics.median([t[key] for t in all_]) for key in all_[0]}
            | {"lowest": min(t["over"] for t in all_), "highest": max(t["over"] for t in all_)}
            for count, all_ in by.items()
        }
        for way, by in seen.items()
    }


def show(found: dict[str, dict[int, Times]]) -> None:
    """Print the table: the raw loop is the limit that all are held against."""
    print("two gloo ranks, a step of a tiny model; median over the rounds")
    heads = f"{'step':>9} {'raw':>9} {'over raw':>9}  {'rounds':>14} {'epoch end':>10} {'first':>8}"
    print(f"  {'way':12} {'names':>5} {heads}")
    for way, by in found.items():
        for names, times in by.items():
            rounds = f"{100 * times['lowest']:+.0f} to {100 * times['highest']:+.0f}"
            print(
                f"  {way:12} {names:5} {1e3 * times['step']:6.2f} ms {1e3 * times['raw']:6.2f} ms "
                f"{100 * times['over']:+7.0f} %  {rounds:>14} {1e3 * times['close']:7.1f} ms "
                f"{times['first']:6.2f} s"
            )


def main() -> None:
    """Run the ways in turn, print the table, write JSON."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--rounds", type=int, default=3)
    ask.add_argument("--steps", type=int, default=400)
    ask.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    ask.add_argument("--names", nargs="+", type=int, default=list(NAMES))
    ask.add_argument("--out", type=Path, default=RESULTS)
    args = ask.parse_args()
    found = measure(args.ways, args.names, args.steps, args.rounds)
    show(found)
    args.out.mkdir(parents=True, exist_ok=True)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    content = {"versions": versions, "steps": args.steps, "rounds": args.rounds, "seconds": found}
    (args.out / "trainer.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
