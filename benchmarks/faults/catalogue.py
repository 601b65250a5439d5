"""Which faults and which tools there are."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.faults import lightning_programs, programs
from benchmarks.faults.job import share_of

MARK = "# here"


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    name: str  # on the command line
    title: str  # in tables
    ranks: int = 2  # of the world
    wrong: int = 1  # the rank at fault
    signal: signal.Signals | None = None  # what the parent sends to it, if anything
    lost: bool = False  # whether that rank is none of which an answer is expected
    harmless: bool = False  # whether an error would be a false verdict

    @property
    def program(self) -> str:
        """The name of its function in ``programs`` and in ``lightning_programs``."""
        return "lost" if self.signal else self.name.replace("-", "_")

    @property
    def survivors(self) -> list[int]:
        """The ranks that should end, with an error or with the right value."""
        return [rank for rank in range(self.ranks) if not (self.lost and rank == self.wrong)]

    @property
    def others(self) -> list[int]:
        """The ranks that do nothing wrong."""
        return [rank for rank in range(self.ranks) if rank != self.wrong]

    def expressible(self, tool: str) -> bool:
        """Whether there is a program of it for a tool."""
        return hasattr(program_of(tool), self.program)

    def places(self, tool: str) -> list[tuple[str, int]]:
        """Return file and line of what the rank at fault does, or does last."""
        if not self.expressible(tool):
            return []
        functions: list[Callable[..., Any]] = [getattr(program_of(tool), self.program)]
        if self.program == "compute_raises":
            functions.append(share_of)
        return [place for function in functions for place in _marked(function)]


def _signalled(name: str, sent: signal.Signals, wrong: int) -> Fault:
    return Fault(name, f"{sent.name} of rank {wrong}", 3, wrong, sent, lost=True)


_FAULTS = (
    Fault("skipped", "collective skipped on one rank, the next is alike"),
    Fault("skipped-unlike", "collective skipped on one rank, the next is another"),
    Fault("skipped-ddp", "collective skipped on one rank of a DDP loop"),
    Fault("never-called", "the tool's first call skipped on one rank"),
    Fault(
        "skipped-backward",
        "a backward pass of DDP skipped on one rank before the tool's first call",
    ),
    Fault("interrupted", "a timer ends a call on one rank, which goes on", 3),
    Fault("swapped", "order of two metrics swapped"),
    Fault("extra", "extra collective on one rank"),
    Fault("sum-max", "sum against max", wrong=0),
    Fault("dtype-same-size", "int32 against float32"),
    Fault("dtype-other-size", "float64 against float32"),
    Fault("length", "3 numbers against 4, reduced"),
    Fault("gather-shape", "[3, 2] against [2, 3], gathered"),
    Fault("gather-length", "[3] against [4], gathered"),
    Fault("exits", "one rank ends early, as programs end", 3, lost=True),
    Fault("raises", "one rank raises", 3, lost=True),
    Fault("os-exits", "one rank calls os._exit(1)", 3, lost=True),
    Fault(
        "os-exits-first",
        "one rank calls os._exit(1) after an error, before the tool's first call",
        3,
        lost=True,
    ),
    _signalled("kill-1", signal.SIGKILL, 1),
    _signalled("kill-0", signal.SIGKILL, 0),
    _signalled("stop-1", signal.SIGSTOP, 1),
    _signalled("stop-0", signal.SIGSTOP, 0),
    Fault("slow", "one rank is 3 s late (no fault)", 3, harmless=True),
    Fault("stuck", "one rank in an endless loop", 3, lost=True),
    Fault("compute-raises", "a metric's compute raises on one rank", 3, lost=True),
    Fault("subgroups", "two subgroups in another order"),
)
FAULTS = {fault.name: fault for fault in _FAULTS}

_TOOLS = """
torch | torch.distributed | `init_process_group('gloo')`, all defaults: a time-out of 30 minutes
torch-timeout | torch.distributed, time-out | the same with `timeout=` {timeout} s
detail | DETAIL | the same with `TORCH_DISTRIBUTED_DEBUG=DETAIL` and `timeout=` {timeout} s
monitored | monitored_barrier | `monitored_barrier(timeout={timeout} s, wait_all_ranks=True)` \
before each collective of the program, and `timeout=` {timeout} s
debug-server | debug server | as in the first column, with `start_debug_server(dump_dir=..., \
dump_interval=2)` of `torch.distributed.debug`, which writes the stacks of all ranks; it ends no \
program
lightning | Lightning | `trainer.validate` with `DDPStrategy(process_group_backend='gloo', \
timeout={timeout} s)`; `self.log(..., sync_dist=True)`, `self.all_gather`, \
`trainer.strategy.barrier`
distmetrics | distmetrics | its calls in a group made as in the first column, with \
`DISTMETRICS_GUARD=on` and `DISTMETRICS_TIMEOUT={timeout}`
distmetrics-launch | distmetrics (own launch) | the same in processes that it has started itself
"""
# Name on the command line → title, and how it is set up, with the seconds of patience.
TOOLS: dict[str, tuple[str, str]] = {}
for _line in _TOOLS.strip().splitlines():
    _name, _title, _about = _line.split(" | ")
    TOOLS[_name] = _title, _about


def title(tool: str) -> str:
    """Return what a tool is called in tables."""
    return TOOLS[tool][0]


def program_of(tool: str) -> ModuleType:
    """Return the module with a tool's programs."""
    return lightning_programs if tool == "lightning" else programs


def _marked(function: Callable[..., Any]) -> list[tuple[str, int]]:
    """Return the lines of a function that are marked."""
    lines, first = inspect.getsourcelines(function)
    file = Path(inspect.getfile(function)).name
    return [(file, first + offset) for offset, line in enumerate(lines) if MARK in line]
