"""What pytest's plugin does once a test is distributed: run it as every rank, and show the ranks
that failed.

The plugin itself is ``pytest_distmetrics``, which imports this module when it is needed.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distmetrics.comm.outcome import Outcome, blame
from distmetrics.comm.threads import LeftBehind
from distmetrics.errors import (
    ConfigurationError,
    InputTypeError,
    MissingDependencyError,
    PeerLostError,
    who,
)
from distmetrics.launch.pickles import pickled_by_value
from distmetrics.testing import world as worlds
from distmetrics.testing.faults import Fault
from distmetrics.testing.report import Report, listeners
from distmetrics.testing.routed import routed
from distmetrics.testing.shown import Look, carried, failure_of, shown

FAILURE = pytest.StashKey[Any]()
REPORTS = pytest.StashKey[list[dict[str, Any]]]()
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
        """Make the world that a test's markers and the options ask for; ``size`` goes before the
        markers'.

        Raises:
            ConfigurationError: a marker says what makes no sense.
        """
        chosen = marked.get("world_size", 2) if size is None else size
        if isinstance(chosen, bool) or not isinstance(chosen, int) or chosen < 1:
            raise _wrong(item, f"needs a world_size of 1 or more, got {chosen!r}")
        backend = item.config.getoption("--distmetrics-backend") or marked.get("backend", "threads")
        if backend not in ("threads", "gloo"):
            raise _wrong(item, f"needs backend 'threads' or 'gloo', got {backend!r}")
        timeout = marked.get("timeout", item.config.getoption("--distmetrics-timeout"))
        return cls(chosen, backend, timeout, tuple(marked.get("faults", ())))

    def run(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        """As :func:`distmetrics.testing.run`, in this world."""
        with self._torch_calls():
            return worlds.run(
                self.size, fn, *args, backend=self.backend, faults=self.faults, limit=self.timeout
            )

    def outcomes(self, fn: Callable[..., Any], *args: Any) -> list[Outcome]:
        """As :func:`distmetrics.testing.outcomes`, in this world."""
        with self._torch_calls():
            return worlds.outcomes(
                self.size, fn, *args, backend=self.backend, faults=self.faults, limit=self.timeout
            )

    def _torch_calls(self) -> contextlib.AbstractContextManager[None]:
        return routed() if self.backend == "threads" else contextlib.nullcontext()


def run_as_ranks(item: pytest.Function, marked: Mapping[str, Any]) -> None:
    """Run a test as every rank of its world; raise the error that began it, and keep what each rank
    has to show.
    """
    drawn: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    world = World.of(item, marked, drawn.get("world"))
    values = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    look = Look.of(item)
    job: Callable[..., Any] = _AsRank(item.obj, values, look)
    if world.backend == "gloo":
        job = _by_value(job, item, values)
    ended = [_home(outcome) for outcome in world.outcomes(job)]
    failed = [
        outcome
        for outcome in ended
        if outcome.error is not None and not _is_wanted(outcome, world.faults)
    ]
    if not failed:
        return
    root = min(failed, key=lambda outcome: (blame(outcome.error), outcome.rank)).error
    assert root is not None
    if isinstance(root, pytest.skip.Exception | pytest.xfail.Exception):
        leavers = [outcome.rank for outcome in failed if type(outcome.error) is type(root)]
        if len(leavers) < world.size:
            text = f"{who(leavers)} left the test ({type(root).__name__}: {root}), and other ranks did not"
            raise pytest.fail.Exception(text, pytrace=False)
        raise root
    item.stash[FAILURE] = failure_of(failed, world.size, world.backend)
    raise root


@dataclass(frozen=True)
class _AsRank:
    """The test as one rank runs it."""

    test: Callable[..., Any]
    values: dict[str, Any]
    look: Look

    def __call__(self, comm: Any) -> None:
        values = self.values | ({"comm": comm} if "comm" in self.values else {})
        try:
            with self.look.comparisons():
                self.test(**values)
        except LeftBehind:
            raise
        except BaseException as error:
            shown(error, self.look)
            raise


@dataclass(frozen=True)
class _Pickled:
    """A job that carries its test module's code along: no process needs to import it."""

    job: bytes

    def __call__(self, comm: Any) -> Any:
        try:
            return pickle.loads(self.job)(comm)  # noqa: S301  (our own parent's bytes)
        except tuple(_OUTCOMES.values()) as outcome:
            raise _Sent.of(outcome) from outcome


class _Sent(BaseException):
    """An outcome of pytest's (skip, xfail, fail), whose own classes cannot be pickled, on its way
    home.
    """

    @classmethod
    def of(cls, outcome: BaseException) -> _Sent:
        kind = next(kind for kind, known in _OUTCOMES.items() if type(outcome) is known)
        sent = cls(kind, str(outcome))
        sent.__dict__.update(carried(outcome))
        return sent


_OUTCOMES = {
    "skip": pytest.skip.Exception,
    "xfail": pytest.xfail.Exception,
    "fail": pytest.fail.Exception,
}


def _home(outcome: Outcome) -> Outcome:
    if not isinstance(outcome.error, _Sent):
        return outcome
    kind, text = outcome.error.args
    error = _OUTCOMES[kind](text)
    error.__dict__.update(carried(outcome.error))
    return Outcome(outcome.rank, error=error)


def _is_wanted(outcome: Outcome, faults: Sequence[Fault]) -> bool:
    """Whether a rank ended as a fault was to end it: it is its survivors that are tested."""
    for fault in faults:
        if fault.rank != outcome.rank:
            continue
        if (
            fault.kind == "kill"
            and isinstance(outcome.error, PeerLostError)
            and outcome.error.peers == (fault.rank,)
        ):
            return True
        if fault.kind == "raises" and repr(outcome.error) == repr(fault.raised()):
            return True
    return False


def _by_value(job: Any, item: pytest.Function, values: dict[str, Any]) -> _Pickled:
    try:
        import cloudpickle
    except ImportError as error:
        raise MissingDependencyError.of(
            "cloudpickle", "test", "sending a test to processes"
        ) from error
    cloudpickle.register_pickle_by_value(item.module)
    try:
        for name, value in values.items():
            try:
                pickled_by_value(value)
            except Exception as error:
                raise InputTypeError(
                    f"{item.nodeid} runs on processes, and its argument {name} can't be sent to "
                    f"one: {error}",
                    do="make it inside the test, or run this test on threads.",
                ) from error
        return _Pickled(pickled_by_value(job))
    finally:
        cloudpickle.unregister_pickle_by_value(item.module)


def collect_reports(config: pytest.Config) -> None:
    """Keep every report that is made from now on."""
    reports = config.stash.setdefault(REPORTS, [])

    def keep(report: Report) -> None:
        reports.append(report.to_dict())

    config.add_cleanup(lambda: listeners.remove(keep))
    listeners.append(keep)


def finish_reports(config: pytest.Config) -> None:
    """Write the page; a worker of pytest-xdist hands its reports over instead."""
    reports = config.stash[REPORTS]
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output[_WORKER_OUTPUT] = reports
        return
    from distmetrics.testing import page

    page.write(reports, Path(config.getoption("--distmetrics-report")))


def take_reports(config: pytest.Config, node: Any) -> None:
    """Add a worker's reports; one that has crashed has none."""
    config.stash[REPORTS] += getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT, [])


def _wrong(item: pytest.Item, text: str) -> ConfigurationError:
    return ConfigurationError(f"{item.nodeid}: @pytest.mark.distributed {text}")
