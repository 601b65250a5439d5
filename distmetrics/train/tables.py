"""The tables that a trainer prints: what a model consists of, and the results of an evaluation."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

from torch import nn

from distmetrics.errors import MissingDependencyError


def wanted(flag: bool | None, stream: Any, what: str) -> bool:
    """Resolve a flag for something that rich prints: None is True where a terminal and rich are.

    Raises:
        MissingDependencyError: the flag is True, and rich is not installed.
    """
    has_rich = importlib.util.find_spec("rich") is not None
    if flag and not has_rich:
        raise MissingDependencyError.of("rich", "train", what)
    return (stream is not None and stream.isatty() and has_rich) if flag is None else flag


def print_summary(module: nn.Module, depth: int) -> None:
    """Print a model's parts down to ``depth``, their numbers of parameters, and their size."""
    parameters = list(module.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    total = sum(p.numel() for p in parameters)
    size = sum(p.numel() * p.element_size() for p in parameters)
    parts = [
        [name, type(part).__name__, f"{sum(p.numel() for p in part.parameters()):,}"]
        for name, part in module.named_modules()
        if name and name.count(".") < depth
    ]
    _print(
        ["", "Name", "Type", "Params"],
        [[str(index), *part] for index, part in enumerate(parts)],
        f"{trained:<12,} Trainable params",
        f"{total - trained:<12,} Non-trainable params",
        f"{total:<12,} Total params",
        f"{size / 1e6:<12.3f} Total estimated model params size (MB)",
    )


def print_results(call: str, results: Sequence[dict[str, float]], verbose: bool | None) -> None:
    """Print the results of an evaluation if they are wanted, a column a loader."""
    if not wanted(verbose, sys.stdout, "the table of results"):
        return
    names = dict.fromkeys(name for result in results for name in result)
    _print(
        [f"{call} metric", *[f"DataLoader {index}" for index in range(len(results))]],
        [
            [name, *[f"{result[name]:.6g}" if name in result else "" for result in results]]
            for name in names
        ],
    )


def _print(header: Sequence[str], rows: Sequence[Sequence[str]], *lines: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in header:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(file=sys.stdout)
    for part in (table, *lines):
        console.print(part, highlight=False)
