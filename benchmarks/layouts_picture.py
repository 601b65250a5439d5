"""Draw who talks to whom over a mesh, as ``layout`` says.

``python -m benchmarks.layouts_picture`` writes docs/layouts.svg.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from distmetrics.layouts.mesh import SAME, SHARD, Mesh

PICTURE = Path(__file__).parents[1] / "docs" / "layouts.svg"
SIZES = {"pp": 2, "dp": 2, "tp": 2}
ROLES = {"pp": "last", "dp": SHARD, "tp": SAME}
SHARDS, NOTHING = ("#dbeafe", "#fde68a"), "#f3f4f6"
REDUCED, COMPARED, GIVEN = "#15803d", "#b91c1c", "#6b7280"
WIDTH, HEIGHT = 1.15, 0.62  # of a box


def place_of(mesh: Mesh, rank: int) -> tuple[float, float]:
    """Return the middle of a rank's box: stages side by side, shards below each other."""
    stage, shard, replica = mesh.place(rank).values()
    return 1.7 * replica + 4.2 * stage, -1.35 * shard


def draw() -> None:
    """Draw the ranks of a mesh of 2 x 2 x 2, and what moves between them."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "layouts", "font.size": 11})
    mesh = Mesh.of(SIZES, ROLES)
    figure, axes = plt.subplots(figsize=(8, 3.9))
    for rank in mesh.ranks:
        x, y = place_of(mesh, rank)
        shard = mesh.place(rank)["dp"]
        has_values = mesh.owns(rank)
        box = FancyBboxPatch(
            (x - WIDTH / 2, y - HEIGHT / 2),
            WIDTH,
            HEIGHT,
            boxstyle="round,pad=0.02",
            facecolor=SHARDS[shard] if has_values else NOTHING,
            edgecolor="#374151",
        )
        axes.add_patch(box)
        axes.text(x, y + 0.1, f"rank {rank}", ha="center", va="center", weight="bold")
        what = f"shard {shard}" if has_values else "no values"
        axes.text(x, y - 0.16, what, ha="center", va="center", size=9)
        for axis, color, style in (("dp", REDUCED, "-"), ("tp", COMPARED, "--")):
            for other in mesh.along(rank, [axis]):
                if has_values and other > rank:
                    line(mesh, rank, other, color, style)
        for other in mesh.along(rank, mesh.owned):
            if has_values and other != rank:
                arrow(axes, mesh, rank, other)
    for stage, text in enumerate(("pp 0: the first stage", "pp 1: the last stage")):
        axes.text(0.85 + 4.2 * stage, 0.9, text, ha="center")
    legend(axes)
    axes.set_xlim(-0.8, 6.7)
    axes.set_ylim(-3.3, 1.2)
    axes.axis("off")
    figure.tight_layout(pad=0.2)
    figure.savefig(PICTURE, metadata={"Date": None})


def line(mesh: Mesh, rank: int, other: int, color: str, style: str) -> None:
    """Join the boxes of two ranks."""
    (x1, y1), (x2, y2) = place_of(mesh, rank), place_of(mesh, other)
    across, down = (WIDTH / 2, 0.0) if x1 != x2 else (0.0, HEIGHT / 2)
    plt.plot([x1 + across, x2 - across], [y1 - down, y2 + down], style, color=color, lw=2)


def arrow(axes: Axes, mesh: Mesh, rank: int, other: int) -> None:
    """Point from a rank with values to one that is given the result."""
    (x1, y1), (x2, y2) = place_of(mesh, rank), place_of(mesh, other)
    bend = 0.16 if mesh.place(rank)["tp"] else -0.16
    axes.annotate(
        "",
        (x2, y2 + (HEIGHT / 2 if bend > 0 else -HEIGHT / 2)),
        (x1, y1 + (HEIGHT / 2 if bend > 0 else -HEIGHT / 2)),
        arrowprops={
            "arrowstyle": "->",
            "color": GIVEN,
            "linestyle": ":",
            "connectionstyle": f"arc3,rad={bend}",
        },
    )


def legend(axes: Axes) -> None:
    """Say what the lines mean."""
    texts = (
        (REDUCED, "-", 'dp="shard": reduced over, these ranks hold other samples'),
        (COMPARED, "--", 'tp="same": compared, they must send the same bytes, which count once'),
        (GIVEN, ":", 'pp="last": given the result; what these ranks pass is not looked at'),
    )
    for row, (color, style, text) in enumerate(texts):
        y = -2.3 - 0.36 * row
        axes.plot([-0.6, 0.0], [y, y], style, color=color, lw=2)
        axes.text(0.15, y, text, va="center")


if __name__ == "__main__":
    draw()
