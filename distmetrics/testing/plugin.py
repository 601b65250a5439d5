"""What pytest's plugin does once a test is distributed: run it as every rank, show what failed.

The plugin itself is ``pytest_distmetrics``, which imports this module when it is needed.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distmetrics.comm.verdict import Outcome, blame, settle
from distmetrics.errors import (
    ConfigurationError,
    InputTypeError,
    MissingDependencyError,
    PeerLostError,
    who,
)
from distmetrics.launch.preflight import find_unpicklable
from distmetrics.launch.spawn import pickled_by_value
from distmetrics.testing import world as worlds
from distmetrics.testing.fake_torch_distributed import routed
from distmetrics.testing.faults import Fault
from distmetrics.testing.pytest_failures import Look, explain_comparisons, failure_of
from distmetrics.testing.report import Report, listeners

FAILURE = pytest.StashKey[Any]()
_WORKER_OUTPUT = "distmetrics_reports"


@dataclass(frozen=True)
class World:
    """A world in which tests run functions.

    Attributes:
        size: number of ranks.
        backend: "threads" or "gloo".
        timeout: seconds after which a rank that is still busy is stopped.
        faults: that strike its ranks.
    """

    size: int
    backend: worlds.Backend = "threads"
    timeout: float = 60.0
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, item: pytest.Item, marked: Mapping[str, Any], size: int | None = None) -> World:
        """Return the world that a test's markers and the options ask for.

        Args:
            item: the test.
            marked: the arguments of its markers.
            size: goes before the markers' size.

        Raises:
            ConfigurationError: a marker says what makes no sense.
        """
        option, wrong = item.config.getoption, f"{item.nodeid}: @pytest.mark.distributed needs"
        size = marked.get("world_size", 2) if size is None else size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigurationError(f"{wrong} a world_size of 1 or more, got {size!r}")
        backend = option("--distmetrics-backend") or marked.get("backend", "threads")
        if backend not in ("threads", "gloo"):
            raise ConfigurationError(f"{wrong} backend 'threads' or 'gloo', got {backend!r}")
        timeout = marked.get("timeout", option("--distmetrics-timeout"))
        return cls(size, backend, timeout, tuple(marked.get("faults", ())))

    def run(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        """As :func:`distmetrics.testing.run`, in this world."""
        return settle(self.outcomes(fn, *args))

    def outcomes(self, fn: Callable[..., Any], *args: Any) -> list[Outcome]:
        """As :func:`distmetrics.testing.outcomes`, in this world."""
        with routed() if self.backend == "threads" else contextlib.nullcontext():
            return worlds.outcomes(
                self.size, fn, *args, backend=self.backend, faults=self.faults, limit=self.timeout
            )


def run_as_ranks(item: pytest.Function, marked: Mapping[str, Any]) -> None:
    """Run a test as every rank of its world; raise the error that began it, if there is one.

    What each rank has to show is kept in the test's stash.
    """
    world = item.funcargs.get("world")
    if not isinstance(world, World):
        chosen = getattr(item, "callspec", None)  # of a test of several sizes that asks for none
        size = None if chosen is None else chosen.params.get("world")
        world = World.of(item, marked, size)
    values = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    job: Callable[..., Any] = functools.partial(_as_rank, item.obj, values, Look.of(item))
    if world.backend == "gloo":
        job = _by_value(job, item, values)
    outcomes = [outcome for outcome in world.outcomes(job) if outcome.error is not None]
    failed = [outcome for outcome in outcomes if not _is_wanted(outcome, world.faults)]
    if not failed:
        return
    root = min(failed, key=lambda outcome: blame(outcome.error)).error
    assert root is not None
    if not isinstance(root, pytest.skip.Exception | pytest.xfail.Exception):
        item.stash[FAILURE] = failure_of(failed, world.size, world.backend)
        raise root
    leavers = [outcome.rank for outcome in failed if type(outcome.error) is type(root)]
    if len(leavers) == world.size:
        raise root
    pytest.fail(
        f"{who(leavers)} left the test ({type(root).__name__}: {root}), and other ranks did not",
        pytrace=False,
    )


def _is_wanted(outcome: Outcome, faults: tuple[Fault, ...]) -> bool:
    """Return True if a rank ended as a fault was to end it: it is its survivors that are tested."""
    error = outcome.error
    is_lost = isinstance(error, PeerLostError) and error.peers == (outcome.rank,)
    for fault in faults:
        is_raised = fault.kind == "raises" and repr(error) == repr(fault.raised())
        is_killed = fault.kind == "kill" and is_lost
        if fault.rank == outcome.rank and (is_raised or is_killed):
            return True
    return False


def _as_rank(test: Callable[..., Any], values: dict[str, Any], look: Look, comm: Any) -> None:
    """Run the test as one rank."""
    own = {"comm": comm} if "comm" in values else {}
    explain_comparisons(look.verbosity)
    try:
        test(**values | own)
    except BaseException as error:
        look.attach(error)
        raise


def _by_value(job: Any, item: pytest.Function, values: dict[str, Any]) -> Callable[..., Any]:
    """Return a job that carries its test module's code: no process needs to import that."""
    try:
        import cloudpickle
    except ImportError as error:
        raise MissingDependencyError.of("cloudpickle", "sending a test to processes") from error
    cloudpickle.register_pickle_by_value(item.module)
    try:
        for name, value in values.items():
            for part in find_unpicklable(value, name):
                raise InputTypeError(
                    f"{item.nodeid} runs on processes, and its argument {name} can't be sent to "
                    f"one: {part}",
                    do="make it inside the test, or run this test on threads.",
                )
        return functools.partial(_run_pickled, pickled_by_value(job))
    finally:
        cloudpickle.unregister_pickle_by_value(item.module)


def _run_pickled(job: bytes, comm: Any) -> Any:
    return pickle.loads(job)(comm)  # noqa: S301  (our own parent's bytes)


def _reduce(outcome: BaseException) -> tuple[Any, ...]:
    return _restored, (type(outcome).__name__, str(outcome)), vars(outcome)


def _restored(name: str, text: str) -> BaseException:
    return _EXCEPTIONS[name](text)


# What these functions raise claims to be of builtins, where no pickle finds it.
_EXCEPTIONS: dict[str, Callable[[str], BaseException]] = {}
for _kind in (pytest.skip, pytest.xfail, pytest.fail):
    _EXCEPTIONS[_kind.Exception.__name__] = _kind.Exception
    copyreg.pickle(_kind.Exception, _reduce)


class ReportPage:
    """A plugin that collects every report of the session, and writes one page."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._path = path
        self._output: dict[str, Any] | None = getattr(config, "workeroutput", None)
        self._reports: list[dict[str, Any]] = []
        listeners.append(self._keep)

    def _keep(self, report: Report) -> None:
        self._reports.append(report.to_dict())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Write the page; a worker of pytest-xdist hands its reports over instead."""
        if self._output is not None:
            self._output[_WORKER_OUTPUT] = self._reports
            return
        from distmetrics.testing import page

        self._path.write_text(page.render(self._reports), encoding="utf-8")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add a worker's reports; one that has crashed has none."""
        self._reports += getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT, [])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say where the page is."""
        if self._reports:
            text = f"distmetrics: {len(self._reports)} reports in {self._path}"
            terminalreporter.write_line(text)

    def pytest_unconfigure(self) -> None:
        """Collect no more."""
        listeners.remove(self._keep)
