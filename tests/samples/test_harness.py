"""The evaluation harness of examples/: its scores are the same to the last digit, whoever evaluates which samples."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from distmetrics.testing import run

PROGRAM = Path(__file__).parent.parent.parent / "examples" / "evaluation_harness.py"


def evaluate(comm: Any) -> dict[str, float]:
    """Load the program and evaluate."""
    spec = importlib.util.spec_from_file_location("evaluation_harness", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scores: dict[str, float] = module.evaluate(comm)
    return scores


@pytest.mark.parametrize("world_sizes", [(2, 7), pytest.param(range(2, 9), marks=pytest.mark.long)], ids=str)
def test_from_one_to_eight_ranks(world_sizes: Sequence[int]) -> None:
    (wanted,) = run(1, evaluate)
    assert 0 < wanted["choices"] < 1
    assert 0 < wanted["generation"] < 1
    assert wanted["perplexity"] > 1
    for world_size in world_sizes:
        assert run(world_size, evaluate) == [wanted] * world_size


@pytest.mark.gloo
def test_on_processes() -> None:
    assert run(2, evaluate, backend="gloo") == run(1, evaluate) * 2
