"""Worlds of processes that answer one question after another, until one of them breaks the world.

A collective that never ends, or that aborts the process, must become a verdict and not the end of
the benchmark: the parent waits for a limited time, kills what is left, and starts a new world for
the next question.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.conformance.catalogue import MODULES
from benchmarks.conformance.ranks import Ended

__all__ = ["World"]

# Seconds for the other ranks once one has ended, by how: they have nobody left to wait for. After
# an abort there is nothing to learn from them; after an error only whether they raise too.
_GRACE = {"value": 3.0, "error": 0.7, "abort": 0.0}


class World:
    """``size`` processes, each with its end of a pipe; joined in a gloo group if ``group``.

    >>> with World(2, group=True) as world:
    ...     ended = world.ask(by_torchmetrics, "SumMetric", "even")
    """

    def __init__(self, size: int, *, group: bool, limit: float) -> None:
        self.size, self.group, self.limit = size, group, limit
        self._ranks: list[tuple[Any, Connection]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.started = 0

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def ask(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        """Return what ``fn(*args)`` returned in every process, or an ``Ended`` if it failed."""
        if not self._ranks:
            self._start()
        question = pickle.dumps((fn, args))
        for _, pipe in self._ranks:
            with contextlib.suppress(BrokenPipeError):  # it died since: its exit code tells, below
                pipe.send_bytes(question)
        answers, whole = self._answers()
        if not whole:
            self.end()
        return answers

    def _answers(self) -> tuple[list[Any], bool]:
        """Collect an answer of each process; the world is whole if all gave one and none raised."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + self.limit
        while len(answers) < self.size:
            missing = {
                pipe: rank for rank, (_, pipe) in enumerate(self._ranks) if rank not in answers
            }
            ready = wait(list(missing), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                answer = answers[missing[pipe]] = self._answer(missing[pipe], pipe)
                kind = answer.kind if isinstance(answer, Ended) else "value"
                deadline = min(deadline, time.monotonic() + _GRACE[kind])
        silent = Ended(
            "hang", text="waits for a rank that has ended" if answers else "no rank ends"
        )
        found = [answers.get(rank, silent) for rank in range(self.size)]
        return found, not any(isinstance(one, Ended) and one.kind != "value" for one in found)

    def _answer(self, rank: int, pipe: Connection) -> Any:
        try:
            return pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            process = self._ranks[rank][0]
            process.join()
            code = process.exitcode
            return Ended(
                "abort", text=signal.Signals(-code).name if code < 0 else f"exit code {code}"
            )

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["benchmarks.conformance.ranks", *MODULES]
        )  # imported once, not by each process
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-")
        store = str(Path(self._folder.name) / "store") if self.group else ""
        self.started += 1
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, self.size, store, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._ranks.append((process, ours))

    def end(self) -> None:
        """Kill the processes; the next question starts new ones."""
        for process, pipe in self._ranks:
            process.kill()
            process.join()
            process.close()
            pipe.close()
        self._ranks = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    """Run in the new process: answer questions until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    with Path(os.devnull).open(
        "w"
    ) as nowhere:  # pycocotools' tables; what gloo prints as it aborts is in the verdict
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    if store:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        files = dist.FileStore(store, size)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=files, rank=rank, world_size=size)
    with contextlib.suppress(EOFError, ConnectionResetError):  # the parent has ended
        while True:
            fn, args = pickle.loads(pipe.recv_bytes())
            try:
                answer = fn(*args)
            except Exception as error:  # noqa: BLE001  (told to the parent)
                answer = Ended("error", text=f"{type(error).__name__}: {error}")
            pipe.send_bytes(pickle.dumps(answer))
    os._exit(0)  # a group that others have left can hang the ordinary way out
