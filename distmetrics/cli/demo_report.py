"""How the demo shows what it found: tables, a picture, JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distmetrics.cli.demo import Section

_STYLE = {  # marker and size: the later lie inside the earlier, so that all show where they coincide
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
)


@contextmanager
def progress(text: str, *, quiet: bool) -> Iterator[None]:
    """Show what is going on while the block runs."""
    if quiet:
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{text} …"):
        yield


def show(
    sections: Sequence[Section],
    findings: Sequence[dict[str, Any]],
    script: Path,
    seconds: float,
    plot: Path | None,
) -> None:
    """Print the tables and the findings."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # a log file has no edge
    for section in sections:
        console.print(_table(section))
        _notes(console, section)
    _findings(console, findings, script)
    right = all(
        section.right("distmetrics", metric) for section in sections for metric in section.truth
    )
    verdict = (
        "every number of distmetrics is the single process's"
        if right
        else "distmetrics is WRONG somewhere"
    )
    console.print(f"\n{verdict}; {seconds:.0f} s in all." + (f" Picture: {plot}" if plot else ""))


def _table(section: Section) -> Any:
    from rich import box
    from rich.table import Table

    shards = " + ".join(map(str, section.shards))
    title = f"{section.data}: {section.world_size} processes, shards of {shards} samples"
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    table.add_column("metric", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("collec-\ntives", justify="right", no_wrap=True)
    theirs, ours = section.collectives["torchmetrics"], section.collectives["distmetrics"]
    for metric, truth in section.truth.items():
        cells = [_cell(section, way, metric) for way in section.ways]
        table.add_row(metric, _number(truth), *cells, f"{theirs[metric]} : {ours[metric]}")
    together = f"{sum(theirs.values())} : {section.collectives['together']}"
    table.add_row("all at once", *[""] * (1 + len(section.ways)), together)
    return table


def _number(value: Any) -> str:
    """Write a score, or for a matrix of counts how many samples it counts."""
    return f"{value:.5f}" if isinstance(value, float) else f"{sum(map(sum, value)):g}"


def _cell(section: Section, way: str, metric: str) -> str:
    """Write a value and how far it is from the truth; green where it is right."""
    value, off = section.ways[way][metric], section.difference(way, metric)
    if section.right(way, metric):
        return f"[green]{_number(value)}\nequal[/]"
    digits = ".5f" if abs(off) >= 5e-6 else ".0e"
    return f"[red]{_number(value)}\n{format(off, '+' + digits) if isinstance(value, float) else format(off, '+g')}[/]"


def _notes(console: Any, section: Section) -> None:
    gap = max(abs(section.truth[name] - value) for name, value in section.scikit_learn.items())
    logged = max(
        abs(section.truth[name] - section.logged[name])
        for name in section.logged
        if name in section.truth
    )
    console.print(
        "Padded sampler: torchmetrics' sync over what a DistributedSampler deals out, as most "
        "trainers evaluate. "
        "Collectives: torchmetrics : distmetrics. Of the matrix, the number of samples in it."
    )
    console.print(
        f"scikit-learn agrees with the truth to {gap:.0e}, what the trainer logged to "
        f"{logged:.0e}; "
        f"trained and validated in {section.seconds:.1f} s\n"
    )


def _findings(console: Any, findings: Sequence[dict[str, Any]], script: Path) -> None:
    from rich.markup import escape

    console.print(
        f"[bold]distlint check {script.name}[/], the kind of script that logs the wrong numbers:\n"
    )
    lines = script.read_text().splitlines()
    for finding in findings:
        console.print(
            f"line {finding['line']}  [red]{finding['code']}[/] {escape(finding['message'])}"
        )
        shown = {finding["line"]: lines[finding["line"] - 1].strip()}
        shown |= {step["line"]: lines[step["line"] - 1].strip() for step in finding["trace"]}
        for line, text in sorted(shown.items()):
            console.print(f"  {line:4} | {escape(text)}")
    console.print(f"\n{len(findings)} findings; `distlint explain CODE` tells more.")


def as_json(sections: Sequence[Section], findings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return everything that the tables show, for machines."""
    return {
        "sections": [
            {
                "data": section.data,
                "world_size": section.world_size,
                "shards": section.shards,
                "metrics": {
                    metric: {
                        "truth": truth,
                        **{
                            way: {
                                "value": values[metric],
                                "difference": section.difference(way, metric),
                                "equal": section.right(way, metric),
                            }
                            for way, values in section.ways.items()
                        },
                    }
                    for metric, truth in section.truth.items()
                },
                "collectives": section.collectives,
                "logged": section.logged,
                "scikit_learn": section.scikit_learn,
                "seconds": section.seconds,
            }
            for section in sections
        ],
        "findings": list(findings),
    }


def draw(sections: Sequence[Section], path: Path) -> None:
    """Draw, for every scalar metric, how far each way is from the truth."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(
        1, len(sections), figsize=(5.5 * len(sections), 4.2), layout="constrained"
    )
    for axes, section in zip(panels, sections, strict=True):
        names = [name for name, value in section.truth.items() if isinstance(value, float)]
        axes.axhline(0.0, color="black", linewidth=0.8)
        for way, (marker, size) in _STYLE.items():
            off = [section.difference(way, name) for name in names]
            axes.plot(
                names,
                off,
                marker,
                label=way,
                markersize=size,
                markeredgecolor="white",
                markeredgewidth=0.5,
            )
        axes.set_title(
            f"{section.data}, {section.world_size} processes\nshards "
            f"{' + '.join(map(str, section.shards))}"
        )
        axes.set_ylabel("value minus that of one process")
        axes.tick_params(axis="x", rotation=25)
    panels[0].legend()
    figure.savefig(path, dpi=120)
