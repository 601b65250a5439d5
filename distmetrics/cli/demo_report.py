"""The results of the demo, and their report: tables, a picture, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from distmetrics.cli.console import console, table

_TOLERANCE = 1e-6  # relative, as float32 metrics allow; counts must be equal
# Marker and size: the later lie inside the earlier, so that all show where they coincide.
_STYLE = {
    "rank 0 alone": ("o", 9),
    "mean of ranks": ("s", 9),
    "padded sampler": ("v", 9),
    "torchmetrics": ("D", 7),
    "distmetrics": ("*", 6),
}
_HEADINGS = (
    "one\nprocess",
    "rank 0\nalone",
    "mean of\nranks",
    "padded\nsampler",
    "torch-\nmetrics",
    "dist-\nmetrics",
    "collec-\ntives",
)
_LEGEND = (
    "Padded sampler: torchmetrics' sync over what a DistributedSampler deals out, as most trainers "
    "evaluate. Collectives: torchmetrics : distmetrics. Of the matrix, the number of samples in it."
)


@dataclass(frozen=True, slots=True)
class Section:
    """One training run and what each way of syncing made of its validation."""

    data: str
    world_size: int
    shards: list[int]
    truth: dict[str, Any]
    ways: dict[str, dict[str, Any]]
    collectives: dict[str, Any]
    logged: dict[str, float]
    seconds: float
    scikit_learn: dict[str, float] = field(default_factory=dict)

    def difference(self, way: str, metric: str) -> float:
        """Return the difference from the truth; of a matrix of counts that in samples."""
        return float((_double(self.ways[way][metric]) - _double(self.truth[metric])).sum())

    def right(self, way: str, metric: str) -> bool:
        """True if a way gives the single process's number: counts exactly, floats to 1e-6 of it."""
        truth = _double(self.truth[metric])
        allowed = 0.0 if truth.ndim else _TOLERANCE * float(truth.abs())
        return bool(((_double(self.ways[way][metric]) - truth).abs() <= allowed).all())

    @property
    def held(self) -> bool:
        """True if every number of distmetrics is the single process's."""
        return all(self.right("distmetrics", metric) for metric in self.truth)


def _double(value: Any) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def show(
    sections: Sequence[Section],
    findings: Sequence[dict[str, Any]],
    script: Path,
    seconds: float,
    plot: Path | None,
) -> None:
    """Print the tables and the linter's findings."""
    screen = console()
    for section in sections:
        screen.print(_table(section))
        screen.print(f"{_LEGEND}\n{_witnesses(section)}\n")
    screen.print(f"[bold]distlint check {script.name}[/]", end="")
    screen.print(", the kind of script that logs the wrong numbers:\n")
    for finding in findings:
        _show_finding(screen, finding, script.read_text().splitlines())
    screen.print(f"\n{len(findings)} findings; `distlint explain CODE` tells more.")
    verdict = "every number of distmetrics is the single process's"
    if not all(section.held for section in sections):
        verdict = "distmetrics is WRONG somewhere"
    screen.print(f"\n{verdict}; {seconds:.0f} s in all." + (f" Picture: {plot}" if plot else ""))


def _table(section: Section) -> Any:
    title = f"{section.data}: {section.world_size} processes, shards of {_shards(section)} samples"
    grid = table("metric", title=title, title_justify="left", title_style="bold", padding=0)
    for heading in _HEADINGS:
        grid.add_column(heading, justify="right", no_wrap=True)
    theirs, ours = section.collectives["torchmetrics"], section.collectives["distmetrics"]
    for metric, truth in section.truth.items():
        cells = [_cell(section, way, metric) for way in section.ways]
        grid.add_row(metric, _number(truth), *cells, f"{theirs[metric]} : {ours[metric]}")
    together = f"{sum(theirs.values())} : {section.collectives['together']}"
    grid.add_row("all at once", *[""] * (1 + len(section.ways)), together)
    return grid


def _shards(section: Section) -> str:
    return " + ".join(map(str, section.shards))


def _number(value: Any) -> str:
    """Return a score as text, or for a matrix of counts how many samples it counts."""
    return f"{value:.5f}" if isinstance(value, float) else f"{sum(map(sum, value)):g}"


def _cell(section: Section, way: str, metric: str) -> str:
    """Return a value and how far it is from the truth; green where it is right."""
    value, off = section.ways[way][metric], section.difference(way, metric)
    if section.right(way, metric):
        return f"[green]{_number(value)}\nequal[/]"
    digits = ".5f" if abs(off) >= 5e-6 else ".0e"
    difference = format(off, f"+{digits}" if isinstance(value, float) else "+g")
    return f"[red]{_number(value)}\n{difference}[/]"


def _witnesses(section: Section) -> str:
    def gap(values: dict[str, float]) -> float:
        names = values.keys() & section.truth.keys()
        return max(abs(float(section.truth[name]) - values[name]) for name in names)

    return (
        f"scikit-learn agrees with the truth to {gap(section.scikit_learn):.0e}, what the trainer "
        f"logged to {gap(section.logged):.0e}; trained and validated in {section.seconds:.1f} s"
    )


def _show_finding(screen: Any, finding: dict[str, Any], source: Sequence[str]) -> None:
    screen.print(f"line {finding['line']}  [red]{finding['code']}[/] ", end="")
    screen.print(finding["message"], markup=False)
    for line in sorted({finding["line"], *(step["line"] for step in finding["trace"])}):
        screen.print(f"  {line:4} | {source[line - 1].strip()}", markup=False)


def as_json(sections: Sequence[Section], findings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return everything that the tables show, for machines."""
    return {"sections": [_section(each) for each in sections], "findings": list(findings)}


def _section(section: Section) -> dict[str, Any]:
    """Return a section with what each way makes of each metric."""
    values = asdict(section)
    truth, ways = values.pop("truth"), values.pop("ways")
    return values | {
        "metrics": {
            metric: {"truth": truth[metric]}
            | {
                way: {
                    "value": ways[way][metric],
                    "difference": section.difference(way, metric),
                    "equal": section.right(way, metric),
                }
                for way in ways
            }
            for metric in truth
        }
    }


def draw(sections: Sequence[Section], path: Path) -> None:
    """Draw, for every scalar metric, how far each way is from the truth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * len(sections), 4.2), layout="constrained")
    panels = figure.subplots(1, len(sections))
    for axes, section in zip(panels, sections, strict=True):
        names = [name for name, value in section.truth.items() if isinstance(value, float)]
        axes.axhline(0.0, color="black", linewidth=0.8)
        for way, (marker, size) in _STYLE.items():
            off = [section.difference(way, name) for name in names]
            style = {"markersize": size, "markeredgecolor": "white", "markeredgewidth": 0.5}
            axes.plot(names, off, marker, label=way, **style)
        axes.set_title(f"{section.data}, {section.world_size} processes\nshards {_shards(section)}")
        axes.set_ylabel("value minus that of one process")
        axes.tick_params(axis="x", rotation=25)
    panels[0].legend()
    figure.savefig(path, dpi=120)
