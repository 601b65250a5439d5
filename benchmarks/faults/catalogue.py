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

__all__ = ["FAULTS", "TOOLS", "Fault", "Tool", "program_of"]

MARK = "# here"


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        name: on the command line.
        title: in tables.
        program: the name of the function in ``programs`` and in ``lightning_programs``.
        ranks: of the world.
        wrong: the rank at fault.
        signal: what the parent sends to it, if anything.
        lost: whether that rank is none of which an answer is expected.
        harmless: whether an error would be a false verdict.
    """

    name: str
    title: str
    program: str
    ranks: int = 2
    wrong: int = 1
    signal: signal.Signals | None = None
    lost: bool = False
    harmless: bool = False

    @property
    def survivors(self) -> list[int]:
        """The ranks that should end, with an error or with the right value."""
        return [rank for rank in range(self.ranks) if not (self.lost and rank == self.wrong)]

    @property
    def others(self) -> list[int]:
        """The ranks that do nothing wrong."""
        return [rank for rank in range(self.ranks) if rank != self.wrong]

    def expressible(self, tool: Tool) -> bool:
        """Whether there is a program of it for a tool."""
        return hasattr(program_of(tool), self.program)

    def places(self, tool: Tool) -> list[tuple[str, int]]:
        """Return file and line of what the rank at fault does, or does last."""
        functions: list[Callable[..., Any]] = [getattr(program_of(tool), self.program)]
        if self.program == "compute_raises":
            from benchmarks.faults import metric  # late: torchmetrics takes seconds

            functions.append(metric.Share.compute)
        return [place for function in functions for place in _marked(function)]


def _signalled(name: str, sent: signal.Signals, wrong: int) -> Fault:
    return Fault(name, f"{sent.name} of rank {wrong}", "lost", 3, wrong, sent, lost=True)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("skipped", "collective skipped on one rank, the next is alike", "skipped"),
        Fault(
            "skipped-unlike",
            "collective skipped on one rank, the next is another",
            "skipped_unlike",
        ),
        Fault("skipped-ddp", "collective skipped on one rank of a DDP loop", "skipped_ddp"),
        Fault("never-called", "the tool's first call skipped on one rank", "never_called"),
        Fault(
            "skipped-backward",
            "a backward pass of DDP skipped on one rank before the tool's first call",
            "skipped_backward",
        ),
        Fault("interrupted", "a timer ends a call on one rank, which goes on", "interrupted", 3),
        Fault("swapped", "order of two metrics swapped", "swapped"),
        Fault("extra", "extra collective on one rank", "extra"),
        Fault("sum-max", "sum against max", "sum_max", wrong=0),
        Fault("dtype-same-size", "int32 against float32", "dtype_same_size"),
        Fault("dtype-other-size", "float64 against float32", "dtype_other_size"),
        Fault("length", "3 numbers against 4, reduced", "length"),
        Fault("gather-shape", "[3, 2] against [2, 3], gathered", "gather_shape"),
        Fault("gather-length", "[3] against [4], gathered", "gather_length"),
        Fault("exits", "one rank ends early, as programs end", "exits", 3, lost=True),
        Fault("raises", "one rank raises", "raises", 3, lost=True),
        Fault("os-exits", "one rank calls os._exit(1)", "os_exits", 3, lost=True),
        Fault(
            "os-exits-first",
            "one rank calls os._exit(1) after an error, before the tool's first call",
            "os_exits_first",
            3,
            lost=True,
        ),
        _signalled("kill-1", signal.SIGKILL, 1),
        _signalled("kill-0", signal.SIGKILL, 0),
        _signalled("stop-1", signal.SIGSTOP, 1),
        _signalled("stop-0", signal.SIGSTOP, 0),
        Fault("slow", "one rank is 3 s late (no fault)", "slow", 3, harmless=True),
        Fault("stuck", "one rank in an endless loop", "stuck", 3, lost=True),
        Fault(
            "compute-raises",
            "a metric's compute raises on one rank",
            "compute_raises",
            3,
            lost=True,
        ),
        Fault("subgroups", "two subgroups in another order", "subgroups"),
    )
}


@dataclass(frozen=True)
class Tool:
    """Who is tried.

    Attributes:
        name: on the command line.
        title: in tables.
        about: how it is set up, with ``{timeout}`` for the seconds of patience.
        variables: of its ranks' environment, likewise.
    """

    name: str
    title: str
    about: str
    variables: tuple[tuple[str, str], ...] = ()


_GUARD = (("DISTMETRICS_GUARD", "on"), ("DISTMETRICS_TIMEOUT", "{timeout}"))
TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "torch",
            "torch.distributed",
            "`init_process_group('gloo')`, all defaults: a time-out of 30 minutes",
        ),
        Tool(
            "torch-timeout", "torch.distributed, time-out", "the same with `timeout=` {timeout} s"
        ),
        Tool(
            "detail",
            "DETAIL",
            "the same with `TORCH_DISTRIBUTED_DEBUG=DETAIL` and `timeout=` {timeout} s",
            (("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),),
        ),
        Tool(
            "monitored",
            "monitored_barrier",
            "`monitored_barrier(timeout={timeout} s, wait_all_ranks=True)` before each "
            "collective of the program, and "
            "`timeout=` {timeout} s",
        ),
        Tool(
            "debug-server",
            "debug server",
            "as in the first column, with `start_debug_server(dump_dir=..., dump_interval=2)` of "
            "`torch.distributed.debug`, which writes the stacks of all ranks; it ends no program",
        ),
        Tool(
            "lightning",
            "Lightning",
            "`trainer.validate` with `DDPStrategy(process_group_backend='gloo', "
            "timeout={timeout} s)`; `self.log(..., "
            "sync_dist=True)`, `self.all_gather`, `trainer.strategy.barrier`",
        ),
        Tool(
            "distmetrics",
            "distmetrics",
            "its calls in a group made as in the first column, with `DISTMETRICS_GUARD=on` and "
            "`DISTMETRICS_TIMEOUT={timeout}`",
            _GUARD,
        ),
        Tool(
            "distmetrics-launch",
            "distmetrics (own launch)",
            "the same in processes that it has started itself",
            _GUARD,
        ),
    )
}


def program_of(tool: Tool) -> ModuleType:
    """Return the module with a tool's programs."""
    return lightning_programs if tool.name == "lightning" else programs


def _marked(function: Callable[..., Any]) -> list[tuple[str, int]]:
    """Return the lines of a function that are marked."""
    lines, first = inspect.getsourcelines(function)
    file = Path(inspect.getfile(function)).name
    return [(file, first + offset) for offset, line in enumerate(lines) if MARK in line]
