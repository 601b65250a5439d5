"""One start of four processes for all that the tests of layouts do in them."""

from __future__ import annotations

from typing import Any

import pytest

from distmetrics.testing import run
from tests.layouts.processes import everything


@pytest.fixture(scope="session")
def four_processes() -> list[dict[str, Any]]:
    """What each of four real processes found."""
    return run(4, everything, backend="gloo", limit=300)
