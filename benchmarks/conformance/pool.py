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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.conformance.case import LAYOUTS, Case
from benchmarks.conformance.catalogue import MODULES, cases
from benchmarks.conformance.ranks import Ended, by_distmetrics, by_threads, by_torchmetrics, missing
from benchmarks.conformance.report import Row, judge

__all__ = ["Plan", "World", "measure"]

TORCHMETRICS_SIZES = (2, 3)
TORCHMETRICS_LAYOUTS = ("even", "batch counts", "empty last", "empty but one")
GLOO_SIZE = 3
LIMIT = 20.0  # seconds after which a question without an answer is a hang
cases()  # made once, and not by each process that the server forks
# Seconds for the other ranks once one has ended, by how: they have nobody left to wait for. After
# an abort there is nothing to learn from them; after an error only whether they raise too.
_GRACE = {"value": 3.0, "error": 0.7, "abort": 0.0}


class World:
    """``size`` processes, each with its end of a pipe; joined in a gloo group if ``group``.

    >>> with World(2, group=True, limit=20) as world:
    ...     ended = world.ask(by_torchmetrics, "SumMetric", "even")
    """

    def __init__(self, size: int, *, group: bool, limit: float) -> None:
        self.size, self.group, self.limit = size, group, limit
        self._ranks: list[tuple[Any, Connection]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

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
            pipes = enumerate(pipe for _, pipe in self._ranks)
            missing = {pipe: rank for rank, pipe in pipes if rank not in answers}
            ready = wait(list(missing), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                answer = answers[missing[pipe]] = self._answer(missing[pipe], pipe)
                kind = answer.kind if isinstance(answer, Ended) else "value"
                deadline = min(deadline, time.monotonic() + _GRACE[kind])
        said = "waits for a rank that has ended" if answers else "no rank ends"
        found = [answers.get(rank, Ended("hang", text=said)) for rank in range(self.size)]
        return found, not any(isinstance(one, Ended) and one.kind != "value" for one in found)

    def _answer(self, rank: int, pipe: Connection) -> Any:
        try:
            return pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            process = self._ranks[rank][0]
            process.join()
            code = process.exitcode
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return Ended("abort", text=how)

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, *MODULES])  # imported once, not by each process
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-")
        store = str(Path(self._folder.name) / "store") if self.group else ""
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            arguments = (rank, self.size, store, theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
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
    with Path(os.devnull).open("w") as nowhere:  # pycocotools' tables; gloo's last words
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


@dataclass(frozen=True)
class Plan:
    """Which questions to ask."""

    sizes: Sequence[int]  # world sizes of the threads
    # names of the cases that distmetrics also syncs on gloo, between 3 ranks
    sample: frozenset[str]


def measure(cases: Sequence[Case], plan: Plan) -> Iterator[tuple[Case, list[Row], str]]:
    """Yield each case with its rows, or with the reason why it cannot be constructed here."""
    with contextlib.ExitStack() as stack:
        worlds = {
            size: stack.enter_context(World(size, group=size > 1, limit=LIMIT))
            for size in (1, *TORCHMETRICS_SIZES)
        }
        for case in cases:
            answer = worlds[1].ask(missing, case.name)[0]
            why = answer.text if isinstance(answer, Ended) else str(answer)
            yield case, [] if why else [*_rows(case, plan, worlds)], why


def _rows(case: Case, plan: Plan, worlds: dict[int, World]) -> Iterator[Row]:
    """Ask everything about one case."""
    in_sample = case.name in plan.sample
    for size in sorted({*plan.sizes, *([GLOO_SIZE] if in_sample else [])}):
        for layout in LAYOUTS:
            answer = worlds[1].ask(by_threads, case.name, layout, size)[0]
            if isinstance(answer, Ended):  # the whole process, with all the ranks in it
                answer = Ended("error", text="see the ranks"), [answer]
            single, ranks = answer
            found = [("distmetrics", "threads", ranks)]
            if size == GLOO_SIZE and in_sample:
                ranks = worlds[size].ask(by_distmetrics, case.name, layout)
                found.append(("distmetrics", "gloo", ranks))
            is_peers = size in plan.sizes and size in TORCHMETRICS_SIZES
            if is_peers and layout in TORCHMETRICS_LAYOUTS:
                ranks = worlds[size].ask(by_torchmetrics, case.name, layout)
                found.append(("torchmetrics", "gloo", ranks))
            for library, transport, ranks in found:
                said = judge(single, ranks)
                yield Row(case.name, case.group, library, transport, size, layout, *said)
