"""Python processes that need no seconds to import torch: forks of one that has done nothing else.

Each runs a program as its ``__main__`` and ends as any interpreter does. Other than in a new one, torch is imported
before the first line, and sets of texts have the same order in all of them. POSIX only.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parents[1]
_NUMBER = b"%8d"


class Process:
    """``python *command`` with its output in files; behaves as subprocess.Popen.

    ``command``: a path, ``-m`` and a module, or ``-c`` and code; then arguments. ``-W error`` may stand before it.
    """

    def __init__(self, *command: str, env: Mapping[str, str], cwd: str | Path = ROOT) -> None:
        self.command = command
        self.returncode: int | None = None
        self._told, tells = os.pipe()
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115  (closed by kill)
        with tempfile.TemporaryFile("w+") as request:
            json.dump({"command": command, "env": dict(env), "cwd": str(cwd)}, request)
            request.seek(0)
            files = [request.fileno(), self._out.fileno(), self._err.fileno(), tells]
            socket.send_fds(_server(), [b"."], files)
        os.close(tells)
        self.pid = self._hear(60)

    def _hear(self, timeout: float) -> int:
        """What the keeper tells next: first the process's number, then how it has ended."""
        if not select.select([self._told], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.command, timeout)
        return int(os.read(self._told, 8))

    def wait(self, timeout: float = 60) -> int:
        if self.returncode is None:
            self.returncode = self._hear(timeout)
            os.close(self._told)
        return self.returncode

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """Wait for the end; return what is on stdout and stderr."""
        self.wait(timeout)
        texts = []
        for file in (self._out, self._err):
            with file:
                file.seek(0)
                texts.append(file.read().decode())
        return texts[0], texts[1]

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None and not select.select([self._told], [], [], 0)[0]:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it if it still runs, and let go of its files."""
        self.send_signal(signal.SIGKILL)
        self.wait()
        self._out.close()
        self._err.close()


def run(
    *command: str, env: Mapping[str, str], cwd: str | Path = ROOT, timeout: float = 90
) -> subprocess.CompletedProcess[str]:
    """Run ``python *command`` to its end, as subprocess.run does."""
    process = Process(*command, env=env, cwd=cwd)
    try:
        out, err = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(command, process.wait(), out, err)


@functools.cache
def _server() -> socket.socket:
    """The process that forks; it ends with this one, whose end of the connection closes then."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", "exec(__import__('tests.warm').warm.serve())"]
    server = subprocess.Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, cwd=ROOT)
    theirs.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def serve() -> CodeType:
    """Fork for each request; return in the fork what it is to run, and never in the server."""
    import torch.distributed  # noqa: F401

    gc.freeze()  # half of a fork's time would go to a last look at torch's objects
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers leave no zombies
    requests = socket.socket(fileno=0)
    while files := socket.recv_fds(requests, 1, 4)[1]:
        if os.fork() == 0:
            requests.detach()  # the number becomes that of stdin
            return _keep(*files)
        for file in files:
            os.close(file)
    os._exit(0)


def _keep(request: int, out: int, err: int, tells: int) -> CodeType:
    """Fork once more, and tell of that process how it ends, which only its parent can know."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        os.write(tells, _NUMBER % child)
        os.write(tells, _NUMBER % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    os.close(tells)
    for file, number in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(file, number)
        os.close(file)
    with open(request) as file:
        return _become(**json.load(file))


def _become(command: list[str], env: dict[str, str], cwd: str) -> CodeType:
    """Make of this process what ``python *command`` starts; return its program."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    random.seed()
    sys.orig_argv = [sys.executable, *command]
    while command[0] == "-W":
        sys.warnoptions.append(command[1])
        warnings.simplefilter(command[1])  # type: ignore[arg-type]
        command = command[2:]
    how, *rest = command
    more = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each and each not in sys.path]
    sys.path[:1] = [{"-c": "", "-m": cwd}.get(how, str(Path(how).parent)), *more]
    sys.argv = [how, *rest[1:]] if how in ("-c", "-m") else command
    if how == "-c":
        return compile(rest[0], "<string>", "exec")
    if how == "-m":
        return compile(f"__import__('runpy')._run_module_as_main({rest[0]!r})", "<string>", "exec")
    sys.modules["__main__"].__file__ = how
    return compile(Path(how).read_bytes(), how, "exec")
