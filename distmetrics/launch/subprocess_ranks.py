"""The other ranks of a script's world: rank 0's command line, run again for each.

Rank 0 watches them, so that who waits for one that died is told at once; they watch rank 0, and end
with it.
"""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from distmetrics.errors import ConfigurationError
from distmetrics.guard.report import report_all
from distmetrics.guard.settings import current_settings
from distmetrics.guard.store import LAST_WORDS, RAISING_GRACE, Tombstones
from distmetrics.launch.clusters import OWN_STORE
from distmetrics.launch.joining import cores_per_rank
from distmetrics.launch.pickles import exit_reason, has_script

_PARENT = "DISTMETRICS_PARENT"  # process id of rank 0; set for the ranks that it starts
_POLL = 0.05
# Seconds that the others get to report where rank 0 itself is the cause.
_LAST_MOMENT = 0.5
_FOLDER = Path.cwd()  # a script may change its folder later, and is found from here


class SubprocessRanks:
    """Rank 0's handle on the ranks that it starts.

    Args:
        world_size: number of ranks, this one included.
        path: of the job's key-value store, alone in its folder.
        tombstones: where the death of a rank is published; used by a thread of its own.
    """

    def __init__(self, world_size: int, path: str, tombstones: Tombstones) -> None:
        self._folder = Path(path).parent
        self._tombstones = tombstones
        self._closed = threading.Event()
        self._processes = {rank: _start(rank, world_size, path) for rank in range(1, world_size)}
        self._watcher = threading.Thread(
            target=self._watch, name="distmetrics subprocess ranks", daemon=True
        )
        self._watcher.start()

    def join(self) -> list[str]:
        """Wait until every rank has ended; return one line for each that failed."""
        try:
            for process in self._processes.values():
                process.wait()
        finally:
            self._clean_up()
        ended = {rank: process.returncode for rank, process in self._processes.items()}
        return [f"rank {rank} {_obituary(code)}" for rank, code in ended.items() if code]

    def end(self, *, patient: bool) -> None:
        """Give the ranks time to report and end, or just a moment; then kill what still runs."""
        try:
            self._await(RAISING_GRACE if patient else _LAST_MOMENT)
        finally:
            self._clean_up()

    def _await(self, seconds: float) -> None:
        """Wait until all ranks have ended, or for some seconds."""
        deadline = time.monotonic() + seconds
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def _clean_up(self) -> None:
        self._closed.set()
        self._watcher.join()
        if current_settings().report is not None:
            for process in self._processes.values():
                process.terminate()  # lets it write its report
            self._await(LAST_WORDS)
        for process in self._processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        """Publish for each rank that ends without having said why."""
        running = dict(self._processes)
        while running and not self._closed.wait(_POLL):
            for rank, process in list(running.items()):
                if process.poll() is not None:
                    del running[rank]
                    self._tombstones.leave_for(rank, _obituary(process.returncode))


def _start(rank: int, world_size: int, path: str) -> subprocess.Popen[bytes]:
    environ = {
        "OMP_NUM_THREADS": str(cores_per_rank(world_size)),
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        OWN_STORE: path,
        _PARENT: str(os.getpid()),
    }
    return subprocess.Popen(command_line(), env=environ, cwd=_FOLDER, stdin=subprocess.DEVNULL)  # noqa: S603


def command_line() -> list[str]:
    """Return the command of this process, with ``-m``, ``-c`` and the interpreter's options."""
    if not has_script() and "-c" not in sys.orig_argv:
        raise ConfigurationError(
            "strategy='ddp' runs the script again for each rank, and there is none: this is a "
            "notebook or a prompt",
            do="say strategy='ddp_spawn', or put the code into a file.",
        )
    return [sys.executable, *sys.orig_argv[1:]]


def _obituary(code: int) -> str:
    if code == 0:
        return "came to the end of its script without the others"
    return exit_reason(code) + ("; if it wrote an error, that is above" if code > 0 else "")


@functools.cache
def watch_rank_zero() -> None:
    """Once, in a rank that rank 0 has started: end when rank 0 ends, and leave Ctrl-C to it."""
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = int(os.environ[_PARENT])
    folder = Path(os.environ[OWN_STORE]).parent

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL)
        report_all()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="distmetrics rank 0", daemon=True).start()


def await_end_of_rank_zero() -> None:
    """In a rank that rank 0 has started and that failed: let the watcher see whether rank 0 ends.

    Its connections close a moment before its process is gone; the watcher then removes the job's
    files.
    """
    time.sleep(3 * _POLL)
