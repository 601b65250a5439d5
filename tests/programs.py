"""Programs that run as ``python ARGUMENTS`` would, in a fork of a process that has imported what takes seconds.

A test of what a program says needs no interpreter of its own, which takes 2 to 8 seconds to import torch and what is
built on it. Tests of how processes are started, and of what they import, start real ones.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch  # noqa: F401  (tests/conftest.py warms the process that is forked where there is torch)


class Program:
    """A program under way.

    ``arguments`` are what follows ``python``: a file, ``-m`` and a module, or ``-c`` and code; then what the program is
    given. ``fresh``: in an interpreter of its own, where it is the first to import distmetrics.
    """

    def __init__(self, arguments: Sequence[object], *, cwd: Path, env: Mapping[str, str], fresh: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._paths = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        self.arguments = [str(argument) for argument in arguments]
        job = self.arguments, str(cwd), dict(env), [str(path) for path in self._paths]
        context: Any = multiprocessing.get_context("spawn" if fresh else "forkserver")
        self._process = context.Process(target=_main, args=job)
        self._process.start()

    def end(self, timeout: float) -> subprocess.CompletedProcess[str]:
        """Wait for it, and return what ``subprocess.run`` would; after ``timeout`` seconds it is killed."""
        self._process.join(timeout)
        code = self._process.exitcode
        self.kill()
        stdout, stderr = (path.read_text() if path.exists() else "" for path in self._paths)
        self._folder.cleanup()
        if code is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout, stdout, stderr)
        return subprocess.CompletedProcess(self.arguments, code, stdout, stderr)

    def kill(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.join()


def run_program(
    arguments: Sequence[object], *, cwd: Path, env: Mapping[str, str], timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return Program(arguments, cwd=cwd, env=env).end(timeout)


def _main(arguments: list[str], cwd: str, env: dict[str, str], outputs: list[str]) -> None:
    for path, descriptor in zip(outputs, (1, 2), strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # the folder of this environment
    multiprocessing.process._parent_process = None  # it is nobody's child, as an interpreter of its own
    multiprocessing.set_start_method(None, force=True)
    sys.orig_argv = [sys.executable, *arguments]
    for option in filter(None, env.get("PYTHONWARNINGS", "").split(",")):
        warnings._setoption(option)
    code: object = 1
    try:
        _run(arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001  (the interpreter would note it and print it, too)
        sys.last_value = error
        sys.excepthook(*sys.exc_info())
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _run(arguments: list[str]) -> None:
    searched = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if arguments[0] == "-c":
        sys.path[:0] = ["", *searched]
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), vars(sys.modules["__main__"]))
    elif arguments[0] == "-m":
        sys.path[:0] = [str(Path.cwd()), *searched]
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        script = Path(arguments[0]).absolute()
        sys.path[:0] = [str(script.parent), *searched]
        sys.argv = arguments
        runpy.run_path(str(script), run_name="__main__")
