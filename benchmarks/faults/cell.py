"""One fault with one tool: start the ranks, send the signal, watch the survivors.

No process is left behind: each has a session of its own, and all that is left of those is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.catalogue import Fault, Tool
from benchmarks.faults.events import ENDS, Event, read

__all__ = ["Run", "run"]

ROOT = Path(__file__).parents[2]
_TICK = 0.01  # seconds between two looks at the ranks
_START = 90.0  # seconds in which a job must come to its fault
_BEFORE = 0.5  # seconds that the others wait already when a signal is sent
_REPORTS = 6.0  # seconds that survivors have to end, in which they may write a report
_ERRORS = 3000  # characters of a rank's stderr


@dataclass(frozen=True)
class Run:
    """What was seen of the ranks.

    Attributes:
        fault_at: when the fault happened, by the monotonic clock; None if the job did not come to
            it.
        events: of each rank.
        died: when and how ranks ended without a word: rank to time and signal or exit code.
        stderr: the end of what each rank wrote there.
        reported: the ranks that left a report.
        dump: the last stacks of all ranks that a debug server wrote.
    """

    fault_at: float | None
    events: list[list[Event]]
    died: dict[int, tuple[float, str]]
    stderr: list[str]
    reported: list[int]
    dump: str = ""


def run(fault: Fault, tool: Tool, limit: float, timeout: float) -> Run | None:
    """Run a fault with a tool; None if it cannot be expressed there."""
    if not fault.expressible(tool):
        return None
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        with _started(fault, tool, folder, timeout) as processes:
            watch = _Watch(fault, folder, processes)
            watch.follow(limit)
            watch.await_reports()
        return Run(
            watch.fault_at,
            watch.events,
            watch.died,
            [_tail(path) for path in sorted(folder.glob("*.err"))],
            sorted(int(path.stem.removeprefix("rank-")) for path in folder.glob("reports/*.json")),
            _last_dump(folder),
        )


@contextlib.contextmanager
def _started(
    fault: Fault, tool: Tool, folder: Path, timeout: float
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the job's processes, each in a session of its own; kill them all at the end."""
    processes: list[subprocess.Popen[bytes]] = []
    port = _free_port()
    try:
        for rank in range(1 if tool.name == "distmetrics-launch" else fault.ranks):
            variables = {
                name: value.format(timeout=f"{timeout:g}") for name, value in tool.variables
            }
            variables |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            variables |= {
                "WORLD_SIZE": str(fault.ranks),
                "LOCAL_WORLD_SIZE": str(fault.ranks),
                "NODE_RANK": "0",
            }
            variables["DISTMETRICS_REPORT"] = str(folder / "reports")
            variables |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            if tool.name == "distmetrics-launch":  # who it starts has to find out from it
                variables = {name: value for name, value in variables.items() if "RANK" not in name}
            command = [
                sys.executable,
                "-m",
                "benchmarks.faults.rank",
                tool.name,
                fault.name,
                str(folder),
                str(timeout),
            ]
            with (folder / f"rank-{rank}.err").open("wb") as errors:
                processes.append(
                    subprocess.Popen(
                        command,
                        cwd=ROOT,
                        env=os.environ | variables,
                        stdin=subprocess.DEVNULL,
                        stdout=errors,
                        stderr=errors,
                        start_new_session=True,
                    )
                )
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # all of its session have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class _Watch:
    """What the parent knows of the ranks while they run."""

    def __init__(
        self, fault: Fault, folder: Path, processes: Sequence[subprocess.Popen[bytes]]
    ) -> None:
        self.fault, self.folder, self.processes = fault, folder, processes
        self.fault_at: float | None = None
        self.events: list[list[Event]] = []
        self.died: dict[int, tuple[float, str]] = {}

    def follow(self, limit: float) -> None:
        """Return when all survivors have ended, or ``limit`` seconds after the fault."""
        begun = time.monotonic()
        while True:
            self.events = [read(self.folder, rank) for rank in range(self.fault.ranks)]
            self._look_for_the_fault(self.events)
            self._look_for_the_dead()
            ended = {
                rank for rank, told in enumerate(self.events) if _has(told, *ENDS)
            } | self.died.keys()
            if ended.issuperset(self.fault.survivors):
                return
            deadline = begun + _START if self.fault_at is None else self.fault_at + limit
            if time.monotonic() > deadline:
                return
            time.sleep(_TICK)

    def await_reports(self) -> None:
        """Return when the processes of survivors have ended, or after a while."""
        launcher = len(self.processes) < self.fault.ranks
        ranks = [0] if launcher else self.fault.survivors
        deadline = time.monotonic() + _REPORTS
        while any(self.processes[rank].poll() is None for rank in ranks):
            if time.monotonic() > deadline:
                return
            time.sleep(_TICK)

    def _look_for_the_fault(self, events: Sequence[Sequence[Event]]) -> None:
        """Learn when the fault happened; make it happen if that is for the parent to do."""
        if self.fault_at is not None:
            return
        mine = events[self.fault.wrong]
        if self.fault.signal is None:
            self.fault_at = next(
                (event["time"] for event in mine if event["kind"] == "fault"), None
            )
        elif _has(mine, "ready") and all(_has(events[rank], "calls") for rank in self.fault.others):
            time.sleep(_BEFORE)
            pid = next(event["pid"] for event in mine if event["kind"] == "start")
            self.fault_at = time.monotonic()
            os.kill(pid, self.fault.signal)

    def _look_for_the_dead(self) -> None:
        """Note the ranks whose process has ended without a word.

        A launcher ends after all of its ranks.
        """
        launcher = len(self.processes) < self.fault.ranks
        for rank in range(self.fault.ranks):
            code = self.processes[0 if launcher else rank].poll()
            if code is None or rank in self.died:
                continue
            self.events[rank] = read(self.folder, rank)  # it may have told as it ended
            if not _has(self.events[rank], *ENDS):
                self.died[rank] = (
                    time.monotonic(),
                    signal.Signals(-code).name if code < 0 else f"exit code {code}",
                )


def _has(events: Sequence[Event], *kinds: str) -> bool:
    return any(event["kind"] in kinds for event in events)


def _last_dump(folder: Path) -> str:
    """Return the last dump that is not being written: the one before the last."""
    dumps = sorted(folder.glob("dumps/stacks_*.txt"))
    return dumps[-2].read_text() if len(dumps) > 1 else ""


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-_ERRORS:]
