"""What several benchmarks share: command lines, facts, tables, files of results, times, plots."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = [
    "RESULTS",
    "bind_to_core",
    "facts",
    "garbage_kept",
    "parser",
    "plotted",
    "read_table",
    "seconds_of",
    "slowest",
    "table",
    "versions",
    "write_json",
]

RESULTS = Path(__file__).parent / "results"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of a command line whose help is a module's docstring."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, torch and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in ("torch", *packages):
        with contextlib.suppress(PackageNotFoundError):  # the benchmark says what it leaves out
            found[name] = version(name)
    return found


def facts(module: str, took: float, *packages: str) -> dict[str, str]:
    """Return what a reader must know of a run: command, versions, machine and duration."""
    known = versions("torchmetrics", *packages)
    return {
        "command": f"`{shlex.join(['python', '-m', module, *sys.argv[1:]])}`",
        "versions": ", ".join(f"{name} {known[name]}" for name in known),
        "machine": f"{os.cpu_count()} cores",
        "duration": f"{took / 60:.0f} min",
    }


def write_json(name: str, content: Any, folder: Path = RESULTS) -> None:
    """Write a file of results."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content, indent=1) + "\n")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown.

    >>> print(table(["a", "b"], [[1, "x"]]))
    | a | b |
    |---|---|
    | 1 | x |
    """
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def read_table(text: str, head: Sequence[str]) -> list[list[str]]:
    """Return the rows of the table in a page that has this head.

    >>> read_table(table(["a", "b"], [[1, "x"], [2, ""]]), ["a", "b"])
    [['1', 'x'], ['2', '']]
    """
    _, found, rest = text.partition(f"| {' | '.join(head)} |\n")
    rows = []
    for line in rest.splitlines()[1:] if found else []:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line[1:-1].split(" | ")])
    return rows


def bind_to_core(rank: int) -> None:
    """Give each rank one core, as launchers do: a rank must not run on another's."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """Turn the garbage collector off, as timeit does: when it falls due is no part of a time."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seconds_of(act: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def slowest(ranks: Iterable[Sequence[float]]) -> list[float]:
    """Return the time of each repeat on its slowest rank."""
    return [max(each) for each in zip(*ranks, strict=True)]


@contextlib.contextmanager
def plotted(path: Path, rows: int = 1, columns: int = 1, **options: Any) -> Iterator[Any]:
    """Yield the axes of a figure that is written when the block is over."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(rows, columns, layout="constrained", **options)
    yield axes
    figure.savefig(path, dpi=120)
