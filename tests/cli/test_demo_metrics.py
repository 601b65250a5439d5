"""The demo's metrics on its real labels, at every world size, with shards of any size and ranks without data."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distmetrics import sync_and_compute
from distmetrics.cli.demo_train import load, make_metrics, update
from distmetrics.testing import run

SAMPLES = 150


def data(name: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Real labels, and scores that get about two thirds of them right."""
    _, val_set, classes = load(name)
    labels = val_set.tensors[1][:SAMPLES]
    noise = torch.randn(SAMPLES, classes, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.one_hot(labels, classes) * 1.5 + noise, labels, classes


def evaluate(comm: Any, name: str, cuts: list[int]) -> dict[str, Any]:
    logits, labels, classes = data(name)
    first, last = [0, *cuts, SAMPLES][comm.rank : comm.rank + 2]
    metrics = make_metrics(classes)
    for start, stop in itertools.pairwise([*range(first, last, 32), last]):
        update(metrics, logits[start:stop], labels[start:stop])
    return {key: value.tolist() for key, value in sync_and_compute(metrics, comm=comm).items()}


def check(ranks: list[dict[str, Any]], name: str) -> None:
    logits, labels, classes = data(name)
    whole = make_metrics(classes)
    update(whole, logits, labels)
    for got in ranks:
        assert got == ranks[0]
        assert got["confusion matrix"] == whole["confusion matrix"].compute().tolist()
        for key in ("accuracy", "macro F1", "AUROC", "average precision", "loss"):
            assert got[key] == pytest.approx(float(whole[key].compute()), rel=1e-6), key


@pytest.mark.parametrize("name", ["digits", "breast cancer"])
@given(cuts=st.lists(st.integers(0, SAMPLES), max_size=3).map(sorted))
@settings(max_examples=15, deadline=None)
def test_any_shards_on_threads(name: str, cuts: list[int]) -> None:
    check(run(len(cuts) + 1, evaluate, name, cuts), name)


@pytest.mark.gloo
@pytest.mark.parametrize("name", ["digits", "breast cancer"])
@pytest.mark.parametrize("cuts", [[], [40], [0], [60, 60], [1, 150], [0, 7, 90]], ids=str)
def test_shards_on_gloo(name: str, cuts: list[int]) -> None:
    check(run(len(cuts) + 1, evaluate, name, cuts, backend="gloo"), name)
