"""Reports that nobody made: as many, as long and as nasty as a page must bear."""

from __future__ import annotations

import random
from typing import Any

from distmetrics.testing import laws
from distmetrics.testing.report import Report, Violation

NASTY = "Metric(</script><img src=x onerror=\"document.title='broken'\">&amp;'\")"


def violation(law: laws.Law, metric: str, index: int = 0) -> Violation:
    return Violation(
        law,
        metric,
        ("update(tensor([0.5]), tensor([1]))", "nothing"),
        f"tensor({index / 4})",
        ("tensor(0.5)", "MismatchError: ranks disagree on a collective"),
        f"rank 1: a dtype differs, case {index}",
        f"import torch\nfrom distmetrics.testing import replay\n\nprint({metric!r} < {index}, '</script>')",
    )


def report(metric: str, broken: tuple[laws.Law, ...] = (), sync: str = "distmetrics", seed: int = 0) -> Report:
    """Make a report with some of every verdict; what is no violation is drawn."""
    draw = random.Random(seed)
    judged, skipped, off = {}, {}, {}
    for law in laws.ALL:
        kind = "judged" if law in broken else draw.choice(["judged"] * 8 + ["skipped", "off"])
        if kind == "judged":
            judged[law] = draw.randint(1, 40)
        elif kind == "skipped":
            skipped[law] = "update() has no parameter <indices>"
        else:
            off[law] = 'the value is a "list" in rank order'
    found = tuple(violation(law, metric, index) for index, law in enumerate(broken))
    return Report(metric, sync, "threads", (2, 3), judged, skipped, off, found)


def many(metrics: int) -> list[Report | dict[str, Any]]:
    """Make reports of so many metrics of six packages, one of them with a nasty name, one that could not be judged."""
    draw = random.Random(0)
    groups = ["classification", "regression", "retrieval", "text", "image", "audio"]
    found: list[Report | dict[str, Any]] = []
    for index in range(metrics):
        name = NASTY if index == 7 else f"torchmetrics.{groups[index % 6]}:Metric{index:03}"
        broken = tuple(draw.sample(list(laws.ALL), draw.choice([0, 0, 0, 1, 2, 3])))
        found.append(report(name, broken, "own" if index % 2 else "distmetrics", seed=index))
    late = {"metric": "torchmetrics.image:TooSlow", "sync": "own", "error": "no end after 60 s: <stopped>"}
    return [*found, late]
