"""Who gets the rows of a log, on one rank: each writer in its turn, whatever another one raises."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from distmetrics.arguments import Takes, check


class RowLogger(Protocol):
    """A logger, of ours or of Lightning's."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> object:
        """Take a row."""


Writer = Callable[[dict[str, Any], int], object] | RowLogger


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return a row for what takes numbers alone: arrays by the names of their elements.

    >>> numbers({"loss": 0.5, "experts": [3.0, 1.0]})
    {'loss': 0.5, 'experts/0': 3.0, 'experts/1': 1.0}
    """
    flat: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, list):
            flat |= {f"{name}/{index}": each for index, each in enumerate(value)}
        else:
            flat[name] = value
    return flat


class Writers:
    """What rows are given to.

    Args:
        writers: functions of a row and a step, or loggers.

    Raises:
        ConfigurationError: one of them is neither.
    """

    def __init__(self, writers: Sequence[Writer]) -> None:
        check("Log", {"writers": writers}, {"writers": _WRITERS})
        self._writers: list[Any] = [*writers]

    def __len__(self) -> int:
        return len(self._writers)

    def write(self, row: dict[str, Any], step: int) -> None:
        """Give each writer a copy of a row; only then raise what the first that failed has raised.

        A note on the error says which writer it was.
        """
        failed: Exception | None = None
        for place, writer in enumerate(self._writers, 1):
            try:
                _give(writer, copy.deepcopy(row), step)
            except Exception as error:  # noqa: BLE001  (raised below, or noted)
                which = f"writer {place} of {len(self._writers)}, {_name(writer)}"
                if failed is None:
                    failed = error
                    error.add_note(f"Raised by {which}, at step {step}; the other writers went on.")
                else:
                    failed.add_note(f"So did {which}: {type(error).__name__}: {error}")
        if failed is not None:
            raise failed


def _give(writer: Any, row: dict[str, Any], step: int) -> None:
    """Give a function a row, or a logger the numbers of it, and let that make them safe."""
    if not hasattr(writer, "log_metrics"):
        writer(row, step)
        return
    writer.log_metrics(numbers(row), step)
    if hasattr(writer, "save"):
        writer.save()


def _name(writer: Any) -> str:
    """Return what a user calls it: a function's name, or a class's."""
    return getattr(writer, "__qualname__", type(writer).__name__)


def _is_writer(value: Any) -> bool:
    is_made = not isinstance(value, type)
    return is_made and (callable(value) or hasattr(value, "log_metrics"))


_WRITERS = Takes(
    lambda value: isinstance(value, list | tuple) and all(map(_is_writer, value)),
    "a list of functions of a row and a step, or of loggers",
    'pass [CSVLogger("runs")], say, or [lambda row, step: print(step, row)].',
)
