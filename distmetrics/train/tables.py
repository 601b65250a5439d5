"""The tables that a trainer prints: what a model consists of, and what an evaluation found."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from distmetrics.errors import MissingDependencyError

if TYPE_CHECKING:
    from distmetrics.train.state import TrainerState


class Row(NamedTuple):
    """A submodule in the model's table."""

    name: str
    type: str
    parameters: int


def wanted(flag: bool | None, stream: Any, what: str) -> bool:
    """Resolve a flag for something that rich prints: None is yes where rich is installed and
    someone looks.

    Raises:
        MissingDependencyError: True, and rich is not installed.
    """
    has_rich = importlib.util.find_spec("rich") is not None
    if flag and not has_rich:
        raise MissingDependencyError.of("rich", "train", what)
    return (stream is not None and stream.isatty() and has_rich) if flag is None else flag


def rows(module: nn.Module, depth: int = 1) -> list[Row]:
    """Return what a module consists of, down to ``depth``.

    >>> rows(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    [Row(name='0', type='Linear', parameters=9), Row(name='1', type='ReLU', parameters=0)]
    """
    found = [
        (name, child) for name, child in module.named_modules() if name and name.count(".") < depth
    ]
    return [
        Row(name, type(child).__name__, sum(p.numel() for p in child.parameters()))
        for name, child in found
    ]


def short(count: int) -> str:
    """Write a number with three digits and a letter.

    >>> [short(number) for number in (0, 999, 1290, 100_480, 25_600_000)]
    ['0', '999', '1.3 K', '100 K', '25.6 M']
    """
    size, letters = float(count), " KMBT"
    while size >= 999.5 and len(letters) > 1:
        size, letters = size / 1000, letters[1:]
    if letters[0] == " ":
        return str(count)
    return f"{size:.0f} {letters[0]}" if size >= 99.95 else f"{size:.1f} {letters[0]}"


def print_summary(module: nn.Module, depth: int) -> None:
    """Print the table of a model, its numbers of parameters, and their size."""
    table = _table("", "Name", "Type", "Params")
    for index, row in enumerate(rows(module, depth)):
        table.add_row(str(index), row.name, row.type, short(row.parameters))
    parameters = list(module.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    total = sum(p.numel() for p in parameters)
    size = sum(p.numel() * p.element_size() for p in parameters) / 1e6
    lines = [
        (short(trained), "Trainable params"),
        (short(total - trained), "Non-trainable params"),
        (short(total), "Total params"),
        (f"{size:.3f}", "Total estimated model params size (MB)"),
    ]
    _print(table, *[f"{value:<10}{what}" for value, what in lines])


def show_results(
    trainer: TrainerState, call: str, results: Sequence[dict[str, float]], verbose: bool | None
) -> None:
    """Print what an evaluation found, a column a loader, on rank 0."""
    if not trainer.is_global_zero or not wanted(verbose, sys.stdout, "the table of results"):
        return
    table = _table(f"{call} metric", *[f"DataLoader {index}" for index in range(len(results))])
    for name in dict.fromkeys(name for result in results for name in result):
        table.add_row(
            name, *[f"{result[name]:.6g}" if name in result else "" for result in results]
        )
    _print(table)


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(*parts: Any) -> None:
    from rich.console import Console

    console = Console(file=sys.stdout)
    for part in parts:
        console.print(part, highlight=False)
