"""A pytest plugin for torchmetrics' distributed unit tests: a sample, and whose sync.

``-p benchmarks.upstream_tests.plugin``, in both runs alike. It keeps the tests that are marked
``DDP``, tells every process of their pool whose sync to use, and makes a new pool after a test that
failed: a rank that is left in a collective would spoil all tests after it.
"""

from __future__ import annotations

import functools
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import conformance
from benchmarks.upstream_tests import patched

SYNCS = ("theirs", "ours")
_made = pytest.StashKey[int]()  # syncs before the test


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that the benchmark passes."""
    parser.addoption("--sync", choices=SYNCS, required=True, help="whose sync the metrics use")
    parser.addoption("--tally", type=Path, required=True, help="a folder where ours are counted")
    parser.addoption("--each", type=int, default=0, help="cases of each test function; 0 for all")


def pytest_configure(config: pytest.Config) -> None:
    """Begin as each process of the pool does."""
    begin(config.getoption("--sync"), config.getoption("--tally"))


def begin(sync: str, tally: Path) -> None:
    """Prepare a process before it runs a test."""
    conformance.prepare()
    if sync == "ours":
        patched.install(tally)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Let the pool that their conftest makes begin as this process did."""
    theirs = _conftest()
    arguments = (session.config.getoption("--sync"), session.config.getoption("--tally"))
    theirs.Pool = functools.partial(theirs.Pool, initializer=begin, initargs=arguments)  # type: ignore[attr-defined]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the sample of the distributed tests."""
    ids = [item.nodeid for item in items if item.get_closest_marker("DDP")]
    kept = sample(ids, config.getoption("--each"), seed=0)
    files = Counter(name.partition("::")[0] for name in ids)
    sample_note(config.getoption("--tally")).write_text(json.dumps(files))
    left = [item for item in items if item.nodeid not in kept]
    items[:] = [item for item in items if item.nodeid in kept]
    config.hook.pytest_deselected(items=left)


def sample_note(tally: Path) -> Path:
    """Return the file beside ``tally`` with the number of distributed tests of each file."""
    return tally.with_suffix(".cases")


def sample(ids: Iterable[str], each: int, seed: int) -> frozenset[str]:
    """Choose up to ``each`` cases of every test function; 0 for all.

    They are the same ones whatever else is collected.
    """
    functions: defaultdict[str, list[str]] = defaultdict(list)
    for name in ids:
        functions[name.partition("[")[0]].append(name)
    chosen: set[str] = set()
    for function, cases in functions.items():
        count = min(each, len(cases)) if each else len(cases)
        chosen.update(random.Random(f"{seed} {function}").sample(sorted(cases), count))
    return frozenset(chosen)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note how many syncs there were."""
    item.stash[_made] = patched.syncs(item.config.getoption("--tally"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Tell how many syncs of ours the test made; replace the pool if it failed."""
    report = yield
    if report.when == "call":
        made = patched.syncs(item.config.getoption("--tally")) - item.stash[_made]
        item.user_properties.append(("syncs", made))
        report.user_properties = list(item.user_properties)
        if report.failed:
            pytest.pool.terminate()  # type: ignore[attr-defined]
            pytest.pool.join()  # type: ignore[attr-defined]
            _conftest().pytest_sessionstart()
    return report


def _conftest() -> ModuleType:
    return sys.modules["unittests.conftest"]
