"""Random interrupts of collectives that are caught, and after which the rank goes on.

In each try the ranks make the same call four times, with other numbers each time, no name and from
one line; during these some of the ranks are interrupted at a random moment: real processes over
gloo by the handler of a timer, which raises in the main thread, ranks that are threads by an
exception that Python raises in them. Each rank catches it and goes on with the next call. Then all
make one more, in peace. Counted are wrong values, worlds that hang, and tries in which the ranks do
not raise the same error. An interrupt that comes before the first statement of a call, or after its
last, is one of the caller's own code, and is not raised, or the call is made again.

    python -m benchmarks.interrupts             # 20 000 tries, results/interrupts.json
"""

from __future__ import annotations

import ctypes
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import starmap
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import distmetrics as dm
from benchmarks.common import arguments, seconds_of, write_json
from distmetrics.comm.threads import ThreadWorld
from distmetrics.testing import outcomes
from tests.comm.striking import CALLS, PACKAGE, expected, numbers

STEPS = 4  # in which interrupts come; one more follows
BATCH = 250  # tries of one world of processes
LIMIT = 120.0  # seconds for a batch; a try on threads has a tenth
AGAIN = 20e-6  # seconds after which a signal comes again that came outside of a call


class Interrupted(BaseException):
    """Raised by a handler, as KeyboardInterrupt is."""


class TimedOut(Exception):  # noqa: N818  (as users call it)
    """Raised by a handler, as a time limit of one's own is."""


class Plan(NamedTuple):
    """One try: its call, when each struck rank's interrupt comes, as a part of the calls' time."""

    kind: str
    delays: dict[int, float]
    error: type[BaseException]


class Ended(NamedTuple):
    """How one try ended on one rank: values or texts by step, and how many interrupts came."""

    steps: list[Any]
    struck: int


def plans(count: int, world_size: int) -> list[Plan]:
    """Return random plans; in a fourth of them several ranks are struck."""
    draw = random.Random(f"0 {world_size}")
    made = []
    for _ in range(count):
        struck = draw.sample(range(world_size), 1 + (draw.random() < 0.25))
        delays = {rank: draw.random() for rank in struck}
        made.append(Plan(draw.choice([*CALLS]), delays, draw.choice([Interrupted, TimedOut])))
    return made


def attempt(comm: Any, plan: Plan, striking: Callable[[], Any]) -> Ended:
    """Make the calls of one try on this rank; ``striking`` is a block in which interrupts come."""
    with dm.use(comm):
        thunks = [CALLS[plan.kind](step, comm.rank) for step in range(STEPS + 1)]
        ended: list[Any] = []
        struck = 0
        try:
            with striking():
                while len(ended) < STEPS:
                    _make(thunks[len(ended)], ended)
        except (Interrupted, TimedOut) as error:
            struck = 1
            if len(ended) < STEPS and _is_in_call(error.__traceback__):
                ended.append("interrupted")
        while len(ended) <= STEPS:
            _make(thunks[len(ended)], ended)
    return Ended([each if isinstance(each, str) else numbers(each) for each in ended], struck)


def _make(thunk: Callable[[], Any], ended: list[Any]) -> None:
    """Append what a call returns, or its error: in one call, so that no interrupt comes between."""
    try:
        ended.extend(starmap(thunk, ((),)))
    except TimedOut:
        raise
    except Exception as error:  # noqa: BLE001  (counted)
        ended.append(f"{type(error).__name__}: {error}")


def _is_in_call(traceback: TracebackType | None) -> bool:
    """True if an exception was raised after the first line of the outermost function of ours."""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename.startswith(PACKAGE):
            return traceback.tb_next is not None or traceback.tb_lineno != code.co_firstlineno
        traceback = traceback.tb_next
    return False


class Timer:
    """Interrupts the main thread of this process once, inside a call of ours."""

    def __init__(self) -> None:
        self._error: type[BaseException] | None = None
        signal.signal(signal.SIGALRM, self._handle)

    @contextmanager
    def striking(self, delay: float | None, error: type[BaseException]) -> Iterator[None]:
        """Interrupt the block after ``delay`` seconds."""
        if delay is not None:
            self._error = error
            signal.setitimer(signal.ITIMER_REAL, max(delay, 1e-6))
        try:
            yield
        finally:
            self._error = None
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, _: int, frame: FrameType | None) -> None:
        error = self._error
        if error is None:
            return
        if not _is_running_call(frame):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        self._error = None
        raise error


def _is_running_call(frame: FrameType | None) -> bool:
    outermost, place = None, frame
    while place is not None and place.f_globals.get("__name__", "") != __name__:
        if place.f_code.co_filename.startswith(PACKAGE):  # below this module are the launchers
            outermost = place
        place = place.f_back
    if outermost is None:
        return False
    return outermost is not frame or outermost.f_lineno != outermost.f_code.co_firstlineno


def calm() -> list[Plan]:
    """Return tries without an interrupt, which tell how long the calls take."""
    return [Plan(kind, {}, Interrupted) for kind in CALLS for _ in range(3)]


def in_process(comm: Any, todo: list[Plan]) -> list[Ended]:
    """Make the tries of a batch on one rank of a world of processes."""
    timer = Timer()
    took: dict[str, float] = {}
    ended = []
    for plan in calm() + todo:
        # One that an interrupt has broken refuses all later calls, and so does its group.
        own = dm.GroupCommunicator(dist.new_group([*range(comm.world_size)]))
        part = plan.delays.get(comm.rank)
        delay = None if part is None else part * took[plan.kind]
        began = time.perf_counter()
        ended.append(attempt(own, plan, partial(timer.striking, delay, plan.error)))
        if not plan.delays:
            took[plan.kind] = time.perf_counter() - began
    return ended[-len(todo) :]


class Striker:
    """Interrupts ranks that are threads, each once, after its delay."""

    def __init__(self, plan: Plan, seconds: float) -> None:
        self._plan, self._seconds = plan, seconds
        self._lock = threading.Lock()
        self._open: dict[int, int] = {}
        self._done: set[int] = set()

    @contextmanager
    def striking(self, rank: int) -> Iterator[None]:
        """Interrupt the block."""
        self._open[rank] = threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._open.pop(rank, None)

    def strike_all(self) -> None:
        """Interrupt every rank of the plan."""
        began = time.perf_counter()
        for rank, part in sorted(self._plan.delays.items(), key=lambda each: each[1]):
            while time.perf_counter() < began + part * self._seconds:
                time.sleep(0)
            with self._lock:
                if rank in self._open:
                    ident = ctypes.c_ulong(self._open[rank])
                    error = ctypes.py_object(self._plan.error)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error)


def on_threads(plan: Plan, world_size: int, seconds: float) -> list[Any]:
    """Make one try in a world of threads; return how each rank ended."""
    striker = Striker(plan, seconds)

    def work(comm: Any) -> list[Ended]:
        return [attempt(comm, plan, lambda: striker.striking(comm.rank))]

    thread = threading.Thread(target=striker.strike_all)
    thread.start()
    ended = ThreadWorld(world_size).outcomes(work, limit=LIMIT / 10)
    thread.join()
    return ended


def judge(plan: Plan, ranks: list[Ended]) -> list[str]:
    """Return what is wrong with one try."""
    wrong = []
    errors: list[set[str]] = []
    for ended in ranks:
        results = [*enumerate(ended.steps)]
        values = [(step, found) for step, found in results if isinstance(found, list)]
        if any(found != expected(plan.kind, len(ranks), step) for step, found in values):
            wrong.append("wrong value")
        texts = {found for _, found in results if not isinstance(found, list)}
        errors.append(texts - {"interrupted"})
    # Where several ranks are struck, each tells of its own interrupt.
    if len(plan.delays) == 1 and any(texts != errors[0] for texts in errors):
        wrong.append("errors that differ")
    if any(bool(texts) != bool(errors[0]) for texts in errors):
        wrong.append("a rank that is not told")
    if any(not text.startswith("DivergedError") for texts in errors for text in texts):
        wrong.append("error of another type")
    return sorted({*wrong})


class Counts:
    """What a series has come to: counts, and the first tries in which something was wrong."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self.shown: list[str] = []

    def add(self, what: str, plans: list[Plan], ended: list[Any]) -> None:
        """Count the tries of one world, or the world itself if a rank did not come to its end."""
        lost = [repr(rank.error) for rank in ended if rank.error is not None]
        if lost:
            self.counted["worlds that hang or end"] += 1
            self.shown.append(f"{what}: {lost}")
            return
        for plan, *ranks in zip(plans, *[rank.value for rank in ended], strict=True):
            self._add(plan, ranks)

    def _add(self, plan: Plan, ranks: list[Ended]) -> None:
        texts = {step for ended in ranks for step in ended.steps if isinstance(step, str)}
        self.counted["tries"] += 1
        self.counted["interrupts"] += sum(ended.struck for ended in ranks)
        self.counted["ends in an error"] += bool(texts - {"interrupted"})
        for fault in judge(plan, ranks):
            self.counted[fault] += 1
            if len(self.shown) < 20:
                self.shown.append(f"{fault}: {plan} {[ended.steps for ended in ranks]}")


def series(backend: str, world_size: int, tries: int) -> dict[str, Any]:
    """Return the counts of one series."""
    counts = Counts()
    todo = plans(tries, world_size)
    began = time.perf_counter()
    if backend == "gloo":
        for start in range(0, tries, BATCH):
            batch = todo[start : start + BATCH]
            ended = outcomes(world_size, in_process, batch, backend="gloo", limit=LIMIT)
            counts.add(f"batch at {start}", batch, ended)
    else:
        took: dict[str, float] = {}
        for plan in calm():
            took[plan.kind] = seconds_of(partial(on_threads, plan, world_size, 0.0))
        for plan in todo:
            counts.add(str(plan), [plan], on_threads(plan, world_size, took[plan.kind]))
    seconds = round(time.perf_counter() - began, 1)
    told = {"backend": backend, "world_size": world_size, "seconds": seconds}
    return {**told, **counts.counted, "shown": counts.shown}


def main() -> None:
    """Run all series, print and write their counts."""
    args = arguments(__doc__, tries=(20_000, 40))
    torch.set_num_threads(1)
    sys.setswitchinterval(2e-5)  # a thread is interrupted where it happens to be
    cases = [(backend, size) for backend in ("gloo", "threads") for size in (2, 3)]
    results = []
    for backend, size in cases:
        results.append(series(backend, size, args.tries // len(cases)))
        print(results[-1], flush=True)
    if args.is_whole:
        write_json("interrupts.json", results)


if __name__ == "__main__":
    main()
