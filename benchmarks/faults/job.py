"""One rank's view of a job: the calls of the tool that is tried, and what is recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.faults.events import Log

__all__ = ["Job"]

_LONG = 600.0  # seconds: longer than any limit


@dataclass
class Job:
    """What a program sees.

    Calls are the tool's own functions where they have the arguments, so that it sees who calls.

    Attributes:
        rank: of this process.
        world_size: number of ranks.
        wrong: the rank on which the fault happens.
        log: where this rank writes.
        all_reduce: ``all_reduce(x, op, name=, comm=)``; the tensor, reduced.
        all_gather: ``all_gather(x, name=)``; the rows of all ranks.
        compute: the value of a torchmetrics metric over all ranks.
        group: ``group(ranks)``; what ``comm=`` takes.
        module: the LightningModule, in Lightning's programs.
        later: names logged with Lightning, and their right values.
    """

    rank: int
    world_size: int
    wrong: int
    log: Log
    all_reduce: Callable[..., Any]
    all_gather: Callable[..., Any]
    compute: Callable[[Any], Any]
    group: Callable[[list[int]], Any]
    module: Any = None
    later: dict[str, float] = field(default_factory=dict)

    @property
    def faulty(self) -> bool:
        """Whether the fault happens on this rank."""
        return self.rank == self.wrong

    def mine(self, unit: float = 1.0) -> Tensor:
        """Return this rank's four numbers."""
        return torch.full((4,), float(unit * (1 + self.rank)))

    def total(self, unit: float = 1.0, size: int = 4) -> list[float]:
        """Return the sum of all ranks' numbers."""
        return [unit * sum(1 + rank for rank in range(self.world_size))] * size

    def fault(self) -> None:
        """Say that the fault happens now, if it is this rank's."""
        if self.faulty:
            self.log.write("fault")

    def calls(self) -> None:
        """Say that this rank is about to wait for the others."""
        self.log.write("calls")

    def rest(self) -> None:
        """Wait for the signal that the parent sends."""
        self.log.write("ready")
        time.sleep(_LONG)

    def check(self, name: str, got: Any, right: Any) -> None:
        """Record a value that the program was given, and the one that it should have been."""
        self.log.write("value", name=name, got=_plain(got), right=_plain(right))


def _plain(value: Any) -> Any:
    """Turn tensors, and lists of them, into numbers."""
    if isinstance(value, Tensor):
        return value.tolist()
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
