"""What a sync costs in worlds too large for this machine: rounds and bytes, from plans.

The plan is made of the schemas and nothing else, so no process is needed. Shown for a confusion
matrix of 1 000 classes and for the collection of 20 metrics of benchmarks/sync.py, beside
torchmetrics' own scheme, which gathers every state of every rank.

    python -m benchmarks.scaling              # table, JSON and plot in benchmarks/results
"""

from __future__ import annotations

from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from torchmetrics.classification import MulticlassConfusionMatrix

from benchmarks.common import RESULTS, arguments, write_json
from benchmarks.sync_cases import collection
from distmetrics import explain

WORLDS = [2**power for power in range(1, 15)]
GPU = 80 * 2**30  # bytes
KEYS = (("torchmetrics_received", "torchmetrics"), ("received", "distmetrics"))


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


def plot(by_name: dict[str, list[dict[str, Any]]]) -> None:
    """Draw bytes over world size, one panel each."""
    figure, panels = plt.subplots(1, 2, layout="constrained", figsize=(10, 4), sharey=True)
    for axes, (name, rows) in zip(panels, by_name.items(), strict=True):
        for key, label in KEYS:
            rounds = "1 or 2" if key == "received" else rows[-1]["torchmetrics_rounds"]
            received = [row[key] for row in rows]
            axes.plot(WORLDS, received, marker="o", label=f"{label}, {rounds} collectives")
        axes.axhline(GPU, color="grey", linestyle=":", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_yticks([2**10, 2**20, 2**30, 2**40], ["1 KiB", "1 MiB", "1 GiB", "1 TiB"])
        axes.set_xlabel("ranks")
        axes.set_title(name)
        axes.legend(loc="upper left", fontsize=8)
    panels[0].set_ylabel("bytes that a rank receives in a sync")
    where = {"fontsize": 7, "color": "grey", "va": "bottom", "ha": "right"}
    panels[-1].annotate("memory of an 80 GiB GPU", (2**14, GPU), **where)
    figure.savefig(RESULTS / "scaling.png", dpi=120)


def main() -> None:
    """Simulate, print, write JSON and plot."""
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
        plot(by_name)


if __name__ == "__main__":
    main()
