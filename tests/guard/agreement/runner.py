"""Run the programs of this folder as the ranks of a world, and tell how each rank ended."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from distmetrics import DivergedError, MismatchError, PeerLostError, guard
from distmetrics.launch.spawn import launch
from tests.integrations.modules import elastic

DEADLINE = 6.0  # seconds, the guard's
EXAMPLE = "example"  # name of the module that an example becomes
_PROGRAMS = Path(__file__).parent / "programs"
_LIMIT = 60.0  # seconds, the world's
_GUARDS = (MismatchError, DivergedError, PeerLostError)
_LIBRARIES = ("accelerate", "lightning.pytorch", "pytorch_lightning")

Names = Callable[..., Any]
Drive = Callable[[int, Names], None]


@dataclass(frozen=True)
class Driver:
    """What one rank does to run an example.

    Attributes:
        example: of which rule, and which of its examples: ``DL101-bad-0``; ``case`` where it has several faults.
        run: called with the rank, and with a function that executes the example and returns its names.
        elsewhere: whether the guard names a line outside of the example: what began Lightning's sync.
        long: whether only the deadline ends it.
        mend: texts of the example, and what makes it right in their place: then it must run to its end.
        disagrees: why the guard says something else than the linter, if it does.
    """

    example: str
    case: str
    run: Drive
    elsewhere: bool = False
    long: bool = False
    mend: Mapping[str, str] = field(default_factory=dict)
    disagrees: str = ""

    @property
    def name(self) -> str:
        return f"{self.example}-{self.case}" if self.case else self.example


DRIVERS: dict[str, Driver] = {}


def drives(example: str, case: str = "", **more: Any) -> Callable[[Drive], Drive]:
    """Enter a function as the driver of an example."""

    def enter(run: Drive) -> Drive:
        driver = Driver(example, case, run, **more)
        assert driver.name not in DRIVERS
        DRIVERS[driver.name] = driver
        return run

    return enter


@functools.cache
def examples() -> dict[str, str]:
    """Return the source of each program, by ``DL101-bad-0``: faults that hang, and what looks like them."""
    return {path.stem: path.read_text() for path in sorted(_PROGRAMS.glob("*.py"))}


class Ended(NamedTuple):
    """How a rank ended: the type of its error, empty for none, its text, and whether it is one of the guard's."""

    error: str
    text: str
    by_guard: bool


def ends(names: Sequence[str], mended: Sequence[str] = ()) -> list[Ended]:
    """Run drivers, and what is mended of some, one after the other as both ranks of one new world; tell how each ended.

    It is the rank itself that tells: what its launcher says of a rank that it had to stop is not the guard's merit.
    """
    with tempfile.TemporaryDirectory(prefix="agreement-") as folder, guard.use_settings(timeout=DEADLINE):
        work = list(names), list(mended), folder
        ended = launch(_rank, 2, *work, backend="gloo", limit=_LIMIT, start_method="fork")
        told = [Path(folder, f"{outcome.rank}.json") for outcome in ended]
        assert all(path.exists() for path in told), [outcome.error for outcome in ended]
        return [Ended(*json.loads(path.read_text())) for path in told]


@contextmanager
def nursery() -> Iterator[Callable[..., list[Ended]]]:
    """Give :func:`ends` in a process that has imported the libraries; ranks are forked there, in a second."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_prepare) as pool:
        yield lambda *args: pool.submit(ends, *args).result()


def _prepare() -> None:
    warnings.simplefilter("ignore")
    for name in _LIBRARIES:
        importlib.import_module(name)


def _rank(comm: Any, names: Sequence[str], mended: Sequence[str], folder: str) -> None:
    """Be one rank: drive the examples, then do what every job does next, and note how it ended."""
    warnings.simplefilter("ignore")  # Lightning's advice on workers, loggers and step outputs
    for name in ("lightning.pytorch", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)  # devices that were found, tips
    importlib.import_module("tests.guard.agreement.drivers")
    os.environ |= elastic(comm) | {"ACCELERATE_USE_CPU": "true"}
    ended = Ended("", "", False)
    try:
        with guard.watch():
            for name, is_mended in [*((name, False) for name in names), *((name, True) for name in mended)]:
                here = Path(folder, f"{name} {is_mended} {comm.rank}")
                here.mkdir()
                os.chdir(here)
                driver = DRIVERS[name]
                driver.run(comm.rank, functools.partial(_names, driver, is_mended))
                dist.all_reduce(torch.ones(7))  # the job's next step
    except BaseException as error:
        ended = Ended(type(error).__name__, str(error), isinstance(error, _GUARDS))
        raise
    finally:
        Path(folder, f"{comm.rank}.json").write_text(json.dumps(ended))


def _names(driver: Driver, mended: bool, /, **given: Any) -> SimpleNamespace:
    """Execute an example, and return its names; ``given`` are those that it lacks, or that are to be others."""
    source = examples()[driver.example]
    for wrong, right in driver.mend.items() if mended else ():
        assert wrong in source, wrong
        source = source.replace(wrong, right)
    names: dict[str, Any] = {"__name__": EXAMPLE, **given}
    exec(compile(source, f"{driver.example}.py", "exec"), names)
    return SimpleNamespace(**names | given)
