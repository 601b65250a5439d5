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

from benchmarks.faults.catalogue import Fault
from benchmarks.faults.job import ENDS, Event, Log

ROOT = Path(__file__).parents[2]
LAUNCH = "distmetrics-launch"
_TICK = 0.01  # seconds between two looks at the ranks
_START = 90.0  # seconds in which a job must come to its fault
_BEFORE = 0.5  # seconds that the others wait already when a signal is sent
_REPORTS = 6.0  # seconds that survivors have to end, in which they may write a report
_ERRORS = 3000  # characters of a rank's stderr


@dataclass(frozen=True)
class Run:
    """What was seen of the ranks."""

    # when the fault happened, by the monotonic clock; None if the job did not come to it
    fault_at: float | None
    events: list[list[Event]]  # of each rank
    # when and how ranks ended without a word: rank to time and signal or exit code
    died: dict[int, tuple[float, str]]
    stderr: list[str]  # the end of what each rank wrote there
    reported: list[int]  # the ranks that left a report


def run(fault: Fault, tool: str, limit: float, timeout: float) -> Run | None:
    """Run a fault with a tool; None if it cannot be expressed there."""
    if not fault.expressible(tool):
        return None
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        with _started(fault, tool, folder, timeout) as processes:
            watch = _Watch(fault, folder, processes)
            watch.follow(limit)
            watch.await_reports()
        errors = [path.read_text(errors="replace") for path in sorted(folder.glob("*.err"))]
        reports = folder.glob("reports/*.json")
        return Run(
            watch.fault_at,
            watch.events,
            watch.died,
            [text[-_ERRORS:] for text in errors],
            sorted(int(path.stem.removeprefix("rank-")) for path in reports),
        )


def _variables(fault: Fault, tool: str, folder: Path, timeout: float, port: str) -> dict[str, str]:
    """Return the environment of all ranks."""
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0"}
    variables |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(fault.ranks))
    variables |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    variables["DISTMETRICS_REPORT"] = str(folder / "reports")
    if tool.startswith("distmetrics"):
        variables |= {"DISTMETRICS_GUARD": "on", "DISTMETRICS_TIMEOUT": f"{timeout:g}"}
    if tool == "detail":
        variables["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    return variables


@contextlib.contextmanager
def _started(
    fault: Fault, tool: str, folder: Path, timeout: float
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the job's processes, each in a session of its own; kill them all at the end."""
    processes: list[subprocess.Popen[bytes]] = []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    variables = _variables(fault, tool, folder, timeout, port)
    command = [sys.executable, "-m", "benchmarks.faults.tools"]
    command += [tool, fault.name, str(folder), str(timeout)]
    try:
        for rank in range(1 if tool == LAUNCH else fault.ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            if tool == LAUNCH:  # who it starts has to find out from it
                own = {}
                variables.pop("NODE_RANK")
            with (folder / f"rank-{rank}.err").open("wb") as errors:
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=os.environ | variables | own,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    start_new_session=True,
                )
            processes.append(process)
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
        self.fault, self.processes = fault, processes
        self.logs = [Log(folder, rank) for rank in range(fault.ranks)]
        self.is_launcher = len(processes) < fault.ranks
        self.fault_at: float | None = None
        self.events: list[list[Event]] = []
        self.died: dict[int, tuple[float, str]] = {}

    def follow(self, limit: float) -> None:
        """Return when all survivors have ended, or ``limit`` seconds after the fault."""
        begun = time.monotonic()
        while True:
            self.events = [log.read() for log in self.logs]
            self._look_for_the_fault()
            self._look_for_the_dead()
            told = {rank for rank, events in enumerate(self.events) if _has(events, *ENDS)}
            if (told | self.died.keys()).issuperset(self.fault.survivors):
                return
            deadline = begun + _START if self.fault_at is None else self.fault_at + limit
            if time.monotonic() > deadline:
                return
            time.sleep(_TICK)

    def await_reports(self) -> None:
        """Return when the processes of survivors have ended, or after a while."""
        ranks = [0] if self.is_launcher else self.fault.survivors
        deadline = time.monotonic() + _REPORTS
        while any(self.processes[rank].poll() is None for rank in ranks):
            if time.monotonic() > deadline:
                return
            time.sleep(_TICK)

    def _look_for_the_fault(self) -> None:
        """Learn when the fault happened; make it happen if that is for the parent to do."""
        mine = self.events[self.fault.wrong]
        if self.fault_at is not None:
            return
        if self.fault.signal is None:
            times = (event["time"] for event in mine if event["kind"] == "fault")
            self.fault_at = next(times, None)
        elif _has(mine, "ready") and all(_has(self.events[i], "calls") for i in self.fault.others):
            time.sleep(_BEFORE)
            pid = next(event["pid"] for event in mine if event["kind"] == "start")
            self.fault_at = time.monotonic()
            os.kill(pid, self.fault.signal)

    def _look_for_the_dead(self) -> None:
        """Note whose process has ended without a word; a launcher ends after all of its ranks."""
        for rank, log in enumerate(self.logs):
            code = self.processes[0 if self.is_launcher else rank].poll()
            if code is None or rank in self.died:
                continue
            self.events[rank] = log.read()  # it may have told as it ended
            if not _has(self.events[rank], *ENDS):
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                self.died[rank] = time.monotonic(), how


def _has(events: Sequence[Event], *kinds: str) -> bool:
    return any(event["kind"] in kinds for event in events)
