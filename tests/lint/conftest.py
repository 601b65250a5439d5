"""Shared by the linter's tests."""

from __future__ import annotations

import pytest

from distlint.cache import VARIABLE


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """No test knows what another has found."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder
