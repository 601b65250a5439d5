"""What holds for all tests."""

from __future__ import annotations

import importlib
import sys

import pytest
from hypothesis import settings

settings.register_profile("project", deadline=None)  # no test asserts a time; hangs are pytest-timeout's
settings.load_profile("project")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import what every optimizer imports, if there are tests with torch: what is there now no rank needs to import."""
    if "torch" in sys.modules and not session.config.option.collectonly:
        importlib.import_module("torch._dynamo")


@pytest.fixture(autouse=True)
def ranks_that_start_fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``ddp_spawn`` and its kin fork their ranks from a process that has imported torch.

    A spawned rank takes seconds to import what the tests have imported. Tests marked "spawn" do spawn.
    """
    launchers = sys.modules.get("distmetrics.strategies.launchers")
    if launchers is not None and request.node.get_closest_marker("spawn") is None:
        monkeypatch.setattr(launchers.SpawnLaunch, "start_method", "forkserver")
