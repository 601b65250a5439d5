"""One rank of a job: the calls of the tool that is tried, and what the rank tells of itself.

It tells lines of JSON in a file of its own, which the parent reads while the rank runs or hangs.
Times are of the monotonic clock, which the processes of one machine share.
"""

from __future__ import annotations

import json
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Event = dict[str, Any]
ENDS = ("raised", "done")  # after one of these a rank has nothing more to tell
_REST = 600.0  # seconds: longer than any limit
_LONG = 4000  # characters of an error
# torch's stack in C++
_NATIVE = re.compile(r"\n?Exception raised from .*?(?=\n\nThe cause of it:|\Z)", re.DOTALL)


class Log:
    """Where one rank writes."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"rank-{rank}.jsonl"

    def write(self, kind: str, **facts: Any) -> None:
        """Append an event; it is in the file when this returns, whatever becomes of the process."""
        line = json.dumps({"time": time.monotonic(), "kind": kind, **facts}) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def read(self) -> list[Event]:
        """Return what the rank has written so far."""
        whole = self.path.read_text().rpartition("\n")[0] if self.path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]


def text_of(error: BaseException) -> str:
    """Return the text and notes of an error and of its causes, without the stack."""
    texts = ["".join(traceback.format_exception_only(one)).strip() for one in _chain(error)]
    return _NATIVE.sub("", "\n\nThe cause of it:\n".join(texts)).strip()[:_LONG]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@dataclass
class Job:
    """What a program sees.

    Calls are the tool's own functions where they have the arguments, so that it sees who calls.
    """

    rank: int  # of this process
    world_size: int  # number of ranks
    wrong: int  # the rank on which the fault happens
    log: Log  # where this rank writes
    all_reduce: Callable[..., Any]  # ``all_reduce(x, op, name=, comm=)``; the tensor, reduced
    all_gather: Callable[..., Any]  # ``all_gather(x, name=)``; the rows of all ranks
    compute: Callable[[Any], Any]  # the value of a torchmetrics metric over all ranks
    group: Callable[[list[int]], Any]  # ``group(ranks)``; what ``comm=`` takes
    module: Any = None  # the LightningModule, in Lightning's programs
    # names logged with Lightning, and their right values
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

    def everyone(self, unit: float = 1.0) -> list[list[float]]:
        """Return the numbers of all ranks."""
        return [[unit * (1.0 + rank)] * 4 for rank in range(self.world_size)]

    def grids(self) -> list[Tensor]:
        """Return each rank's tensor: [3, 2] of the rank at fault, [2, 3] of the others."""
        shapes = [(3, 2) if rank == self.wrong else (2, 3) for rank in range(self.world_size)]
        return [torch.arange(6.0).reshape(shape) for shape in shapes]

    def lengths(self) -> list[Tensor]:
        """Return each rank's tensor: [3] of the rank at fault, [4] of the others."""
        return [torch.arange(4.0 - (rank == self.wrong)) for rank in range(self.world_size)]

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
        time.sleep(_REST)

    def check(self, name: str, got: Any, right: Any) -> None:
        """Record a value that the program was given, and the one that it should have been.

        Of what is logged with Lightning, ``got`` is the name, under which it is found later.
        """
        if isinstance(got, str):
            self.later[got] = right[0]
        else:
            self.log.write("value", name=name, got=_plain(got), right=_plain(right))


def _plain(value: Any) -> Any:
    """Turn tensors, and lists of them, into numbers."""
    if isinstance(value, Tensor):
        return value.tolist()
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def share_of(job: Job) -> Any:
    """Return a mean whose compute raises on one rank: a file is missing there."""
    from torchmetrics import Metric  # late: torchmetrics takes seconds

    class Share(Metric):
        full_state_update = False
        total: Tensor
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
            self.add_state("count", torch.tensor(0.0), dist_reduce_fx="sum")

        def update(self, values: Tensor) -> None:
            self.total += values.sum()
            self.count += values.numel()

        def compute(self) -> Tensor:
            if job.faulty:
                job.fault()
                raise FileNotFoundError("labels.csv")  # here
            return self.total / self.count

    metric = Share()
    metric.update(job.mine())
    return metric
