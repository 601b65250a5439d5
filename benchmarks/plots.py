"""Draw the pictures of docs/benchmarks.md from the results that are committed; measure nothing.

python -m benchmarks.plots                # right, faults, speed, bytes: *.svg in results
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.common import RESULTS, parser
from benchmarks.faults.catalogue import FAULTS, TOOLS
from benchmarks.faults.report import Row, read

# Okabe and Ito's colors, which color-blind people tell apart, and greys: of tools, and of verdicts
OURS, THEIRS, LIGHTNING, PICKLED, BARE = "#0072b2", "#e69f00", "#cc79a7", "#56b4e9", "#6b7280"
RIGHT, NAMELESS, WRONG, HANG, ABORT = "#009e73", "#8fd4c0", "#d55e00", "#111827", "#7b3294"
VERDICTS = {"right": RIGHT, "wrong": WRONG, "error": NAMELESS, "hang": HANG, "abort": ABORT}
FATES = {"error,\nrank\nnamed": RIGHT, "error\nonly": NAMELESS, "wrong\nnumber": WRONG}
FATES |= {"hang": HANG, "no\nerror": BARE, "not\nrun": "#d1d5db"}
SYNCED = {"torchmetrics, gloo": "torchmetrics’ own sync", "distmetrics, gloo": "distmetrics, gloo"}
SYNCED |= {"distmetrics, threads": "distmetrics, threads"}
SYNCS = {"torchmetrics": THEIRS, "distmetrics": OURS, "bare all_gather": BARE}
LOGS = {"log": ("distmetrics, a mapping", OURS), "calls": ("distmetrics, a call a name", OURS)}
LOGS |= {"buffer": ("sums by hand", BARE), "metrics": ("MeanMetric", THEIRS)}
LOGS |= {"gather": ("all_reduce a value", BARE), "lightning": ("Lightning", LIGHTNING)}
# Of each curve: label, color, style, and how far above its end the label is
RECEIVED = {"torchmetrics_received": ("torchmetrics", THEIRS, "-", 6)}
RECEIVED |= {"received": ("distmetrics", OURS, "-", -14)}
SENT = {
    "gathered": ("all_gather_object", PICKLED, "-", 6),
    "log, other names": ("other names", OURS, ":", 16),
    "log": ("the same names", OURS, "-", -14),
    "bare": ("all_reduce", BARE, "--", -27),
}
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "plots"} | {
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "font.size": 9,
}


def spaced(count: float, unit: str = "") -> str:
    """Return a number as the docs write it."""
    return (f"{count:,.0f}".replace(",", " ") if count >= 100 else f"{count:.3g}") + unit


def loaded(name: str) -> Any:
    """Return the content of a file of JSON."""
    return json.loads((RESULTS / name).read_text())


def cells_of(name: str) -> list[list[str]]:
    """Return the cells of each row of the tables in a page."""
    lines = (RESULTS / name).read_text().splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]


def shares(
    axes: Any, title: str, rows: Mapping[str, Counter[str]], colors: Mapping[str, str]
) -> None:
    """Draw a bar for each row, and beside it its numbers, whose heads are the legend."""
    for column, (head, color) in enumerate(colors.items()):
        x = 1.13 + 0.2 * column
        axes.barh(-0.75, 0.12, 0.16, x - 0.06, color=color)
        axes.text(x, -0.92, head, va="bottom", ha="center", fontsize=8.5)
        for y, counts in enumerate(rows.values()):
            left = sum(counts[other] for other in [*colors][:column]) / counts.total()
            axes.barh(y, counts[head] / counts.total(), 0.62, left, color=color)
            ink = "black" if counts[head] else "#9ca3af"
            axes.text(x, y, spaced(counts[head]), ha="center", va="center", color=ink)
    axes.set(xlim=(0, 1.04 + 0.2 * len(colors)), ylim=(len(rows) - 0.5, -0.9), xticks=[])
    axes.set_yticks(range(len(rows)), [f"{row}, {spaced(rows[row].total())}" for row in rows])
    axes.set_title(title, weight="bold")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def right() -> Figure:
    """Draw the verdicts of torchmetrics' classes, and evaluations under frameworks."""
    found = {row[0]: map(int, row[4:]) for row in cells_of("conformance.md") if row[0] in SYNCED}
    classes = {
        name: Counter(dict(zip(VERDICTS, found[key], strict=True))) for key, name in SYNCED.items()
    }
    meshes = loaded("meshes.json")
    on_meshes = Counter({"right": meshes["counts"].pop("ok"), **meshes["counts"]})
    classes[f"distmetrics, {len(meshes['meshes'])} meshes"] = on_meshes
    alone: dict[str, Counter[str]] = {}
    with_ours: Counter[str] = Counter()
    for name, ranks, *cells in cells_of("frameworks.md"):
        if len(cells) == 12 and ranks.isdigit():  # in the summary
            total, ours, wrong, error = map(int, cells[:4])
            counts = {"right": total - wrong, "wrong": wrong - error, "error": error}
            alone.setdefault(f"{name} alone", Counter()).update(counts)
            with_ours.update({"right": total - ours, "wrong": ours})
    figure = Figure(figsize=(7.9, 4.4), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(4.4, 5.4))
    shares(above, "Classes of torchmetrics, synced", classes, VERDICTS)
    shares(below, "Evaluations on 1 to 4 ranks", alone | {"with distmetrics": with_ours}, VERDICTS)
    return figure


def fate(row: Row) -> str:
    """Return what became of a fault, the worst that a survivor met."""
    named, nameless, wrong, hang, nothing, not_run = FATES
    if not row.was_run:
        return not_run
    if row.wrong or row.hung:
        return wrong if row.wrong else hang
    if row.ended < row.survivors:
        return nothing
    return named if 0 < row.told == row.rank_named else nameless


def faults() -> Figure:
    """Draw what became of faults, by tool."""
    found = [row for row in read(RESULTS) if not FAULTS[row.fault].harmless]
    tools = [tool for tool in TOOLS if tool != "distmetrics-launch"]
    rows = {
        TOOLS[tool][0]: Counter(fate(row) for row in found if row.tool == tool) for tool in tools
    }
    figure = Figure(figsize=(7.9, 3.2), layout="constrained")
    shares(figure.subplots(), "Faults on real processes", rows, FATES)
    return figure


def bars(axes: Any, rows: Iterable[tuple[str, float, str, str]], **options: Any) -> None:
    """Draw a bar for each row: its name, value, color and label."""
    names = []
    for y, (name, value, color, label) in enumerate(rows):
        axes.barh(y, value, 0.7, color=color)
        axes.annotate(label, (value, y), (4, 0), textcoords="offset points", va="center")
        names.append(name)
    axes.set_yticks(range(len(names)), names)
    axes.set(**options)
    axes.set_xticks([])
    axes.minorticks_off()
    axes.invert_yaxis()
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)


def speed() -> Figure:
    """Draw the time of a sync, and what logging costs a step."""
    figure = Figure(figsize=(7.9, 2.6), layout="constrained")
    left, beside = figure.subplots(1, 2)
    rows = []
    for case in loaded("sync.json")["cases"]:
        for way, color in SYNCS.items() if case["case"] == "counts" else ():
            ms, faster = case["ms"][way]["median"], f", {case['times_theirs']:.0f} × faster"
            label = spaced(ms, " ms") + faster * (color == OURS)
            rows.append((f"{way}, {case['world_size']} ranks", ms, color, label))
    bars(left, rows, xscale="log", xlim=(0.1, 3000), title="Sync of 20 metrics, on a log scale")
    steps = loaded("log.json")["steps"]["20"]
    costs = {way: 100 * steps[way]["calls"] / steps["raw"]["step"] for way in LOGS}
    logs = ((name, costs[way], color, f"{costs[way]:.1f} %") for way, (name, color) in LOGS.items())
    bars(beside, logs, xlim=(0, 210), title="Logging 20 names, % of a step")
    return figure


def curves(
    axes: Any, rows: list[Any], ways: Mapping[str, tuple[str, str, str, int]], head: str
) -> None:
    """Draw bytes by ranks, and the last ones as numbers."""
    for key, (label, color, style, up) in ways.items():
        ranks, counts = zip(*((row["ranks"], row[key]) for row in rows), strict=True)
        axes.plot(ranks, counts, style, color=color, linewidth=2)
        for unit, size in (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30)):
            if counts[-1] >= size:
                said = f"{label} {spaced(counts[-1] / size)} {unit}"
        ink = [0.7 * part for part in mpl.colors.to_rgb(color)]
        place = {"textcoords": "offset points", "ha": "right", "color": ink}
        axes.annotate(said, (ranks[-1], counts[-1]), (2, up), fontsize=8.5, **place)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ticks = (2, 16, 256, 4096)
    axes.set_xticks(ticks, map(str, ticks))
    axes.set_yticks([2**10, 2**20, 2**30], ["1 KiB", "1 MiB", "1 GiB"])
    axes.set(xlim=(2, 2**14), ylim=(2**9, 2**41), xlabel="ranks", title=head)
    axes.minorticks_off()


def by_ranks() -> Figure:
    """Draw the bytes of a sync and of a flush, by ranks."""
    figure = Figure(figsize=(7.9, 3.1), layout="constrained")
    *syncs, flush = figure.subplots(1, 3, sharey=True)
    rows = [row | {"ranks": row["world_size"]} for row in loaded("scaling.json")]
    for axes, name in zip(syncs, dict.fromkeys(row["metrics"] for row in rows), strict=True):
        mine = [row for row in rows if row["metrics"] == name]
        curves(axes, mine, RECEIVED, f"Received in a sync:\n{name}")
    plan = loaded("log_plan.json")
    head = f"Sent in a flush of Log:\n{spaced(plan['names'])} means"
    curves(flush, plan["bytes a rank sends"][1:], SENT, head)
    return figure


PICTURES = {"right": right, "faults": faults, "speed": speed, "bytes": by_ranks}


def main(folder: Path = RESULTS) -> None:
    """Write the pictures into a folder."""
    with mpl.rc_context(STYLE):
        for name, draw in PICTURES.items():
            draw().savefig(folder / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
