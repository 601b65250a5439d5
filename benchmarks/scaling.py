"""What a sync costs in worlds too large for this machine: rounds and bytes, from plans.

The plan is made of the schemas and nothing else, so no process is needed. Shown for a confusion
matrix of 1 000 classes and for the collection of 20 metrics of benchmarks/sync.py, beside
torchmetrics' own scheme, which gathers every state of every rank.

    python -m benchmarks.scaling              # table, and JSON in benchmarks/results
"""

from __future__ import annotations

from typing import Any

from torchmetrics.classification import MulticlassConfusionMatrix

from benchmarks.common import arguments, write_json
from benchmarks.sync_cases import collection
from distmetrics import explain

WORLDS = [2**power for power in range(1, 15)]


def simulate(name: str, metrics: Any) -> list[dict[str, Any]]:
    """Explain one sync for every world."""
    rows = []
    for world_size in WORLDS:
        said = explain(metrics, world_size=world_size)
        ours, theirs = said.cost, said.one_by_one
        row = {"metrics": name, "world_size": world_size, "rounds": ours.rounds}
        row |= {"received": ours.received, "torchmetrics_rounds": theirs.rounds}
        rows.append(row | {"torchmetrics_received": theirs.received})
    return rows


def main() -> None:
    """Simulate, print, write JSON."""
    args = arguments(__doc__)
    cases = {
        "confusion matrix of 1000 classes": MulticlassConfusionMatrix(1000, validate_args=False),
        "20 metrics of 10 classes": collection(compute_groups=False),
    }
    by_name = {name: simulate(name, metrics) for name, metrics in cases.items()}
    rows = [row for each in by_name.values() for row in each]
    for row in rows:
        said = f"{row['rounds']:3} rounds {row['received'] / 2**20:12.3f} MiB"
        theirs = f"{row['torchmetrics_rounds']:4} rounds"
        theirs += f" {row['torchmetrics_received'] / 2**20:12.3f} MiB"
        print(f"{row['metrics']:34} W={row['world_size']:<6} {said}   torchmetrics {theirs}")
    if args.is_whole:
        write_json("scaling.json", rows)


if __name__ == "__main__":
    main()
