"""Public reports of wrong numbers and hangs of distributed jobs, as programs of our own.

One module a report, which has

- ``THREAD`` ("owner/name#number"), ``DATE`` (year-month-day), ``SYMPTOM`` (a sentence of ours);
- ``RANKS``, and ``BACKEND``: "threads" or "gloo";
- ``naive(comm)``: what a rank logs in the way of the thread;
- ``ours(comm)``: what it logs as its reporter would write it, having read the pages of docs/;
- ``right()``: the number of one process;
- ``LIMIT``, where ranks take longer than a few seconds to start;
- ``CANNOT``, where nothing can tell: why, and the page that says so.

A rank that has nothing to log returns None.
"""

from __future__ import annotations

import importlib
import math
import multiprocessing
import pkgutil
from collections.abc import Sequence
from contextlib import nullcontext
from multiprocessing import forkserver
from typing import Any, NamedTuple

from benchmarks.published_bugs.bug import caught_warnings
from distmetrics import guard
from distmetrics.comm.threads import ThreadCommunicator
from distmetrics.comm.verdict import Outcome, blame
from distmetrics.errors import DivergedError, MismatchError, PeerLostError
from distmetrics.testing import outcomes
from distmetrics.testing.fake_torch_distributed import routed

WAITED = (MismatchError, DivergedError, PeerLostError)
DEADLINE, LIMIT = 8.0, 90.0  # seconds: of the guard, and of a program


class Seen(NamedTuple):
    """What a report's program has shown.

    Attributes:
        naive: what is logged in the way of the thread: a number, an error, or "hangs".
        ours: what is logged with distmetrics: a number, or an error.
        right: the number of one process.
        verdict: "right", "told", "late", "silent", "hangs" or "cannot be told".
        said: the first line of an error or a warning.
    """

    naive: str
    ours: str
    right: str
    verdict: str
    said: str


def reports() -> dict[str, Any]:
    """Return the modules of all reports by their names; helpers' begin with an underscore."""
    names = sorted(each.name for each in pkgutil.iter_modules(__path__) if each.name[0] != "_")
    return {name: importlib.import_module(f"benchmarks.reports.{name}") for name in names}


def warm() -> None:
    """Let processes of ranks fork from one that has imported what takes long."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["lightning.pytorch"])
    forkserver.ensure_running()


def look(report: Any) -> Seen:
    """Run a report's program in both ways, and judge it."""
    right = float(report.right())
    naive, _ = run(report, "naive")
    ours, warned = run(report, "ours")
    errors = [each.error for each in ours if each.error is not None]
    said = str(min(errors, key=blame)) if errors else "".join(warned[:1])
    verdict = verdict_of(ours, right, said)
    if verdict == "silent" and hasattr(report, "CANNOT"):
        verdict, said = "cannot be told", report.CANNOT
    # The world of threads says of a mix-up what elsewhere would hang, or go on with garbage.
    waited = any(isinstance(each.error, WAITED) for each in naive)
    logged = "hangs" if waited else _shown(naive)
    return Seen(logged, _shown(ours), written(right), verdict, said.partition("\n")[0])


def verdict_of(ours: Sequence[Outcome], right: float, said: str) -> str:
    """Judge how ranks have ended; ``said`` is what they were told, an error or a warning."""
    values = [each.value for each in ours if each.error is None and each.value is not None]
    agree = all(math.isclose(value, right, rel_tol=1e-5, abs_tol=1e-9) for value in values)
    if any("the limit of this run" in str(each.error) for each in ours):
        return "hangs"
    if any("DISTMETRICS_TIMEOUT" in str(each.error) for each in ours):
        return "late"
    failed = any(each.error is not None for each in ours)
    if agree and values and not failed:
        return "right"
    return "told" if said and (agree or not failed) else "silent"


def _shown(ended: Sequence[Outcome]) -> str:
    """Return what the first rank that logs a number has, or else the error that began it."""
    errors = [each.error for each in ended if each.error is not None]
    if errors:
        return type(min(errors, key=blame)).__name__
    return written(next(each.value for each in ended if each.value is not None))


def written(number: float) -> str:
    """Return a number as tables have it."""
    number = float(number)
    return f"{number:.0f}" if number.is_integer() else f"{number:.5g}"


def run(report: Any, way: str) -> tuple[list[Outcome], list[str]]:
    """Run one way of a report; return how ranks have ended, and what they were warned of."""
    threads = report.BACKEND == "threads"
    routes: Any = routed() if threads else nullcontext()
    with guard.use_settings(timeout=DEADLINE), routes, caught_warnings() as warned:
        limit = getattr(report, "LIMIT", LIMIT)
        ended = outcomes(
            report.RANKS, _as_rank, report.__name__, way, backend=report.BACKEND, limit=limit
        )
    texts = list(warned)
    values = []
    for each in ended:
        value, own = each.value if each.error is None else (None, [])
        texts += own
        values.append(Outcome(each.rank, value, each.error))
    return values, texts


def _as_rank(comm: Any, name: str, way: str) -> tuple[Any, list[str]]:
    """Run one way of a report as a rank; threads share the warnings of their process."""
    program = getattr(importlib.import_module(name), way)
    if isinstance(comm.transport, ThreadCommunicator):
        return program(comm), []
    with caught_warnings() as warned:
        value = program(comm)
    return value, warned
