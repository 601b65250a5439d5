"""What pytest's plugin does with a distributed test: run it as every rank, show what failed.

The plugin itself is ``pytest_distmetrics``, which imports this module when it is needed.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import os
import pickle
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
    Traceback,
)
from _pytest.assertion import util

from distmetrics.comm.verdict import Outcome, blame, settle
from distmetrics.errors import (
    ConfigurationError,
    DistmetricsError,
    InputTypeError,
    MissingDependencyError,
    PeerLostError,
    first_line,
    who,
)
from distmetrics.launch.preflight import find_unpicklable
from distmetrics.launch.spawn import pickled_by_value
from distmetrics.testing import worlds
from distmetrics.testing.fake_torch_distributed import routed
from distmetrics.testing.faults import Fault

FAILURE = pytest.StashKey[Any]()
Element = tuple[ReprTraceback, ReprFileLocation | None, str | None]
_PACKAGE = Path(__file__).resolve().parent.parent
_PLUGIN = re.escape(str(Path(__file__)))
_FRAMES_OF_PLUGIN = re.compile(rf'  File "{_PLUGIN}".*(\n    .*)?\n?')
# Making a representation parses source, which threads of Python 3.11 must not do together
# (gh-106905).
_one_at_a_time = threading.Lock()
# An error's attribute with how pytest shows it: it travels with the error from a process.
_ATTRIBUTE = "_distmetrics_elements"


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
        option = item.config.getoption
        size = marked.get("world_size", 2) if size is None else size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigurationError(
                f"{item.nodeid}: @pytest.mark.distributed needs a world_size of 1 or more, got "
                f"{size!r}"
            )
        backend = option("--distmetrics-backend") or marked.get("backend", "threads")
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


def refuse_given(item: pytest.Item, marked: Mapping[str, Any]) -> None:
    """Raise the error of a marked test that hypothesis runs: it would draw on every rank."""
    raise ConfigurationError(
        f"{item.nodeid} is marked distributed and decorated with @given: each rank would draw "
        "examples of its own",
        do="take the mark away, and run the ranks inside of the test: "
        f"distmetrics.testing.run({marked.get('world_size', 2)}, as_rank, drawn) calls "
        "as_rank(comm, drawn) on each.",
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


# How failures of ranks are shown: by pytest's means, where each rank has its source lines.


@dataclass(frozen=True)
class Look:
    """What pytest's options say about tracebacks, and where the test begins."""

    style: Any
    showlocals: bool
    fulltrace: bool
    verbosity: int
    path: str
    line: int

    @classmethod
    def of(cls, item: pytest.Function) -> Look:
        """Return the look of a test."""
        option = item.config.getoption
        style = option("tbstyle", "auto")
        code = item.function.__code__
        return cls(
            "long" if style == "auto" else style,
            bool(option("showlocals", default=False)),
            bool(option("fulltrace", default=False)),
            item.config.get_verbosity(),
            code.co_filename,
            code.co_firstlineno,
        )

    def attach(self, error: BaseException) -> None:
        """Let an error carry how it is shown; called on the rank that raised it."""
        is_plain = isinstance(error, pytest.fail.Exception) and not error.pytrace
        with _one_at_a_time:
            shown = pytest.ExceptionInfo.from_exception(error).getrepr(
                style="value" if is_plain else self.style,
                showlocals=self.showlocals,
                tbfilter=False if self.fulltrace else self._cut,
            )
        alone = [(shown.reprtraceback, shown.reprcrash, None)]
        setattr(error, _ATTRIBUTE, getattr(shown, "chain", alone))

    def _cut(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Traceback:
        """Leave out what lies before the test, and our own frames."""
        test = excinfo.traceback.cut(path=self.path, firstlineno=self.line - 1)
        theirs = test.filter(lambda entry: not Path(entry.path).is_relative_to(_PACKAGE))
        return theirs.filter(excinfo) or test


def explain_comparisons(verbosity: int) -> None:
    """Have failed comparisons explained as pytest does; in a process of ours nothing else does."""
    if util._reprcompare is None:
        util._reprcompare = functools.partial(_explain, verbosity)


def _explain(verbosity: int, op: str, left: object, right: object) -> str | None:
    config = _plain_config(verbosity)
    explanations = config.hook.pytest_assertrepr_compare(
        config=config, op=op, left=left, right=right
    )
    lines = next(filter(None, explanations), None)
    if lines is None:
        return None
    return "\n~".join(line.replace("\n", "\\n") for line in lines).replace("%", "distmetrics/")


@functools.cache
def _plain_config(verbosity: int) -> pytest.Config:
    """Return the configuration of a process in which pytest does not run."""
    arguments = ["--noconftest", "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider"]
    return pytest.Config.fromdictargs({"verbose": verbosity}, arguments)


def failure_of(failed: Sequence[Outcome], world_size: int, backend: str) -> ExceptionChainRepr:
    """Show every rank that failed: equal failures once, and what began it last."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in failed:
        groups.setdefault(_comparable(outcome.error), []).append(outcome)
    least = min(blame(outcome.error) for outcome in failed)
    ordered = sorted(groups.values(), key=lambda group: blame(group[0].error))
    shown: list[Element] = []
    for group in reversed(ordered):
        error = group[0].error
        if blame(error) > least:
            elements, what = [_brief(error)], "let down by what is shown below"
        else:
            elements, what = _elements(error), f"of {world_size}, on {backend}"
        *causes, (traceback, crash, _) = elements
        label = f"^ {who(outcome.rank for outcome in group)} {what}"
        shown += [*causes, (traceback, crash, label)]
    return ExceptionChainRepr(shown)


def _elements(error: BaseException | None) -> list[Element]:
    """Return how an error is shown; one that carries nothing is of a rank that was ended, say."""
    notes = [_FRAMES_OF_PLUGIN.sub("", note) for note in getattr(error, "__notes__", [])]
    return getattr(error, _ATTRIBUTE, None) or [_brief(error, notes)]


def _brief(error: BaseException | None, notes: Sequence[str] = ()) -> Element:
    """Show an error without its traceback."""
    text = f"{type(error).__name__}: {error}"
    entry = ReprEntryNative(["\n".join([text, *notes]) + "\n"])
    crash = ReprFileLocation("", 0, first_line(text))
    return ReprTraceback([entry], None, "native"), crash, None


def _comparable(error: BaseException | None) -> str:
    """Return what equal failures share: an error of ours has one text, which names each line."""
    text = f"{type(error).__name__}: {error}"
    if hasattr(error, _ATTRIBUTE) and not isinstance(error, DistmetricsError):
        text = str(ExceptionChainRepr(_elements(error)))
    return re.sub(r"0x[0-9a-f]+", "0x", text)
