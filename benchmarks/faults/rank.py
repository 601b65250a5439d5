"""What runs in the processes: ``python -m benchmarks.faults.rank TOOL FAULT FOLDER TIMEOUT``.

The environment says which rank it is. For distmetrics' own launch it is the one program that starts
the ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.faults.catalogue import FAULTS, TOOLS, Fault, program_of
from benchmarks.faults.events import ENDS, Log, read, text_of
from benchmarks.faults.tools import JOBS, Program, launched

if TYPE_CHECKING:  # the peers' ranks run without it
    from distmetrics.comm.verdict import Outcome

__all__ = ["main"]


def main() -> None:
    """Be one rank, and tell how it ended."""
    tool, name, folder, patience = sys.argv[1:]
    fault = FAULTS[name]
    program: Program = getattr(program_of(TOOLS[tool]), fault.program)
    if tool == "distmetrics-launch":
        _launch(fault, program, Path(folder))
        return
    log = Log(Path(folder), int(os.environ["RANK"]))
    log.write("start", pid=os.getpid())
    try:
        JOBS[tool](program, fault.wrong, log, timedelta(seconds=float(patience)))
    except Exception as error:
        log.write("raised", text=text_of(error))
        raise
    log.write("done")


def _launch(fault: Fault, program: Program, folder: Path) -> None:
    """Start the ranks, and tell of those that could not do so themselves."""
    from distmetrics.launch.spawn import launch

    _tell(folder, launch(launched, fault.ranks, program, fault.wrong, folder))


def _tell(folder: Path, outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        told = any(event["kind"] in ENDS for event in read(folder, outcome.rank))
        if outcome.error is not None and not told:
            Log(folder, outcome.rank).write("raised", text=text_of(outcome.error))


if __name__ == "__main__":
    main()
