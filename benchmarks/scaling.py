"""What a sync costs in worlds too large for this machine: rounds and bytes, from plans.

The plan is made of the manifests and nothing else, so no process is needed. Shown for a confusion
matrix of 1 000 classes and for the collection of 20 metrics of benchmarks/sync.py, beside
torchmetrics' own scheme, which gathers every state of every rank.

    python -m benchmarks.scaling              # table, JSON and plot in benchmarks/results
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from torchmetrics.classification import MulticlassConfusionMatrix

from benchmarks.sync import RESULTS
from benchmarks.sync_cases import collection
from distmetrics import explain

WORLDS = [2**power for power in range(1, 15)]


def simulate(name: str, metrics: Any) -> list[dict[str, Any]]:
    """Explain one sync for every world."""
    rows = []
    for world_size in WORLDS:
        said = explain(metrics, world_size=world_size)
        rows.append(
            {
                "metrics": name,
                "world_size": world_size,
                "rounds": said.cost.rounds,
                "received": said.cost.received,
                "torchmetrics_rounds": said.one_by_one.rounds,
                "torchmetrics_received": said.one_by_one.received,
            }
        )
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw bytes over world size, one panel each."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(row["metrics"] for row in rows))
    figure, panels = plt.subplots(1, len(names), figsize=(10, 4), layout="constrained", sharey=True)
    for axes, name in zip(panels, names, strict=True):
        own = [row for row in rows if row["metrics"] == name]
        for key, label in (("torchmetrics_received", "torchmetrics"), ("received", "distmetrics")):
            rounds = own[-1][key.replace("received", "rounds")]
            text = (
                f"{label}, {rounds} collectives"
                if label == "torchmetrics"
                else f"{label}, 1 or 2 collectives"
            )
            axes.plot(
                [row["world_size"] for row in own],
                [row[key] for row in own],
                marker="o",
                label=text,
            )
        axes.axhline(80 * 2**30, color="grey", linestyle=":", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_yticks(
            [2**power for power in range(10, 41, 10)], ["1 KiB", "1 MiB", "1 GiB", "1 TiB"]
        )
        axes.set_xlabel("ranks")
        axes.set_title(name)
        axes.legend(loc="upper left", fontsize=8)
    panels[0].set_ylabel("bytes that a rank receives in a sync")
    panels[-1].annotate(
        "memory of an 80 GiB GPU",
        (2**14, 80 * 2**30),
        fontsize=7,
        color="grey",
        va="bottom",
        ha="right",
    )
    figure.savefig(path, dpi=120)


def main() -> None:
    """Simulate, print, write JSON and plot."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--out", type=Path, default=RESULTS)
    args = ask.parse_args()
    rows = simulate(
        "confusion matrix of 1000 classes", MulticlassConfusionMatrix(1000, validate_args=False)
    )
    rows += simulate("20 metrics of 10 classes", collection(compute_groups=False))
    for row in rows:
        print(
            f"{row['metrics']:34} W={row['world_size']:<6} distmetrics {row['rounds']:3} rounds "
            f"{row['received'] / 2**20:12.3f} MiB   torchmetrics {row['torchmetrics_rounds']:4} "
            "rounds "
            f"{row['torchmetrics_received'] / 2**20:12.3f} MiB"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "scaling.json").write_text(json.dumps(rows, indent=1) + "\n")
    plot(rows, args.out / "scaling.png")


if __name__ == "__main__":
    main()
