"""What holds for all tests."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing import forkserver
from typing import Any

import pytest
from hypothesis import Phase, settings

# No test asserts a time; hangs are pytest-timeout's. To explain a failure a hundred examples more are traced.
_COMMON: dict[str, Any] = {"deadline": None, "phases": [phase for phase in Phase if phase is not Phase.explain]}
# What is red for one commit is red whenever it runs; `make long` draws other examples each time.
settings.register_profile("project", derandomize=True, **_COMMON)
settings.register_profile("long", **_COMMON)
settings.load_profile("project")


_ALWAYS = ("distmetrics.launch.spawn", "libcst")  # of ranks, and of distlint as a program
# What ranks import: each takes seconds, and none starts a thread.
_SLOW = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torchmetrics",
    "lightning.pytorch",
    "sklearn.metrics",
    "hypothesis",
    "pytest",
)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the process that ranks fork from, if there are tests with torch, with what the tests have imported."""
    if "torch" in sys.modules and not session.config.option.collectonly:
        names = [*_ALWAYS, *(name for name in _SLOW if name in sys.modules)]
        multiprocessing.get_context("forkserver").set_forkserver_preload(names)
        forkserver.ensure_running()


@pytest.fixture(autouse=True)
def ranks_that_start_fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``ddp_spawn`` and its kin fork their ranks from a process that has imported torch.

    A spawned rank takes seconds to import what the tests have imported. Tests marked "spawn" do spawn.
    """
    launchers = sys.modules.get("distmetrics.strategies.launchers")
    if launchers is not None and request.node.get_closest_marker("spawn") is None:
        monkeypatch.setattr(launchers.Spawn, "start_method", "forkserver")
