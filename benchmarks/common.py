"""What several benchmarks share: command lines, facts, tables, files of results, times."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = [
    "RESULTS",
    "arguments",
    "bind_to_core",
    "facts",
    "garbage_kept",
    "join_elastic",
    "parser",
    "read_table",
    "seconds_of",
    "slowest",
    "spans_in_turns",
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


def arguments(doc: str | None, **amounts: tuple[float, float]) -> argparse.Namespace:
    """Read how much a benchmark is to do: of each amount the usual one, and that of ``--quick``.

    ``is_whole`` tells that nothing was left out: only then are results written.
    """
    ask = parser(doc)
    ask.add_argument("--quick", action="store_true", help="little of everything, printed only")
    for name, (usual, _) in amounts.items():
        ask.add_argument(f"--{name}", type=type(usual), help=f"default {usual}")
    args = ask.parse_args()
    asked = {name for name in amounts if getattr(args, name) is not None}
    args.is_whole = not asked and not args.quick
    for name in amounts.keys() - asked:
        setattr(args, name, amounts[name][args.quick])
    return args


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


def join_elastic(comm: Any) -> None:
    """Tell a framework, by its variables, who this rank is in the group that stands already."""
    if comm.world_size > 1:
        from tests.integrations.modules import elastic

        os.environ |= elastic(comm)


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


def spans_in_turns(
    ways: Mapping[str, Callable[[], Any]], repeats: int, *, block: int, meet: Callable[[], Any]
) -> dict[str, list[tuple[float, float]]]:
    """Time ways in turn; return begin and end of each repeat, by the clock of the machine.

    A turn is a block of repeats whose first one is left out: each way is measured warm, and a drift
    of the machine meets all of them. All ranks ``meet`` before each repeat.
    """
    spans: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(-(-repeats // block)):
        for way, act in ways.items():
            act()
            with garbage_kept():
                for _ in range(block):
                    meet()
                    start = time.perf_counter()
                    act()
                    spans[way].append((start, time.perf_counter()))
    return spans


def slowest(ranks: Iterable[Sequence[tuple[float, float]]]) -> list[float]:
    """Return the milliseconds of each repeat on its slowest rank."""
    return [1e3 * max(end - start for start, end in each) for each in zip(*ranks, strict=True)]
