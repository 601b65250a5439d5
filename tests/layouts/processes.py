"""What the tests of layouts do on four real processes, in one start of them."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test")


def on_four_processes(test: Test) -> Test:
    """Mark a test that reads ``four_processes``, whose first reader starts them."""
    for mark in (pytest.mark.gloo, pytest.mark.xdist_group("four processes"), pytest.mark.timeout(400)):
        test = mark(test)
    return test


def everything(comm: Any) -> dict[str, Any]:
    from benchmarks.parallel_lm import MESHES, on_rank
    from tests.layouts import test_dtensors, test_grad_norm, test_job_ranks, test_layout

    found = {"layouts": test_layout.on_processes(comm), "errors": test_job_ranks.on_processes(comm)}
    warnings.simplefilter("ignore")  # torch warns of tensors that it takes for copies
    return found | {
        "dtensors": test_dtensors.on_rank(comm),
        "norms": test_grad_norm.of_layouts(comm),
        "experts": test_grad_norm.of_experts(comm),
        "clipped": test_grad_norm.clipped(comm),
        "language model": on_rank(comm, MESHES[4]),
    }
