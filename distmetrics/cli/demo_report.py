"""The results of the demo, and their report: tables and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distmetrics.cli.console import console, table

_TOLERANCE = 1e-6  # relative, as float32 metrics allow; counts must be equal
_MARKERS = "_osvD*"  # of the ways
_LEGEND = (
    "Padded sampler: torchmetrics' sync over what a DistributedSampler deals out, as most trainers "
    "evaluate. Of the matrix, the number of samples in it."
)


@dataclass(frozen=True, slots=True)
class Value:
    """What one way makes of a metric.

    Attributes:
        value: a number, or a matrix of counts.
        difference: from the single process's; of a matrix that in samples.
        equal: counts exactly, floats to 1e-6 of them.
    """

    value: Any
    difference: float
    equal: bool

    @classmethod
    def of(cls, value: Any, truth: Any) -> Value:
        """Compare a value with that of a single process."""
        expected = torch.tensor(truth, dtype=torch.float64)
        gap = torch.tensor(value, dtype=torch.float64) - expected
        allowed = 0.0 if expected.ndim else _TOLERANCE * abs(truth)
        equal = bool((gap.abs() <= allowed).all())
        return cls(value, float(gap.sum()), equal)

    def __str__(self) -> str:
        """Return it for a cell of the table: green where it is right."""
        if isinstance(self.value, float):
            text = f"{self.value:.5f}"
        else:
            text = f"{sum(map(sum, self.value)):g}"
        if self.equal:
            return f"[green]{text}\nequal[/]"
        return f"[red]{text}\n{self.difference:+.3g}[/]"


@dataclass(frozen=True, slots=True)
class Section:
    """One training run, and what each way of syncing made of each metric of its validation."""

    data: str
    world_size: int
    shards: list[int]
    metrics: dict[str, dict[str, Value]]
    collectives: dict[str, int]
    logged: dict[str, float]
    seconds: float

    @property
    def title(self) -> str:
        """The run in a few words."""
        shards = " + ".join(map(str, self.shards))
        return f"{self.data}: {self.world_size} processes, shards of {shards} samples"

    @property
    def held(self) -> bool:
        """True if every number of distmetrics is the single process's."""
        return all(ways["distmetrics"].equal for ways in self.metrics.values())


def show(sections: Sequence[Section], findings: Sequence[dict[str, Any]], script: Path) -> None:
    """Print the tables and the linter's findings."""
    screen = console()
    for section in sections:
        screen.print(_table(section))
        calls = ", ".join(f"{way} {count}" for way, count in section.collectives.items())
        screen.print(f"{_LEGEND}\nCollectives for all metrics: {calls}.\n")
    screen.print(f"[bold]distlint check {script.name}[/]: the kind of script that logs such:\n")
    lines = script.read_text().splitlines()
    for finding in findings:
        line = finding["line"]
        screen.print(f"line {line}  {finding['code']} {finding['message']}", markup=False)
        screen.print(f"  {lines[line - 1].strip()}", markup=False)
    verdict = "every number of distmetrics is the single process's"
    if not all(section.held for section in sections):
        verdict = "distmetrics is WRONG somewhere"
    seconds = sum(section.seconds for section in sections)
    screen.print(f"\n{verdict}; {seconds:.0f} s in all.")


def _table(section: Section) -> Any:
    grid = table("metric", title=section.title, padding=0)
    for way in section.metrics["loss"]:
        grid.add_column(way, justify="right")
    for name, ways in section.metrics.items():
        grid.add_row(name, *map(str, ways.values()))
    return grid


def draw(sections: Sequence[Section], path: Path) -> None:
    """Draw, for every metric, how far each way is from the truth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(sections), 4.2), layout="constrained")
    panels = figure.subplots(1, len(sections))
    for axes, section in zip(panels, sections, strict=True):
        # Samples are no share.
        names = [name for name in section.metrics if name != "confusion matrix"]
        for way, marker in zip(section.metrics["loss"], _MARKERS, strict=True):
            gaps = [section.metrics[name][way].difference for name in names]
            axes.plot(names, gaps, marker, label=way)
        axes.set_title(section.title, fontsize="small")
        axes.set_ylabel("value minus that of one process")
        axes.tick_params(axis="x", rotation=25)
    panels[0].legend()
    figure.savefig(path, dpi=120)
