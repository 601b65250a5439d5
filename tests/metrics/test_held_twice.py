"""A flat sync over ranks that hold the same data says so."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torchmetrics as tm
from torchmetrics.classification import BinaryAUROC, MulticlassConfusionMatrix

import distmetrics as dm
from distmetrics.testing import run


def said(shard_of: list[int], kind: str) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(len(shard_of), lambda comm: plain(comm, shard_of, kind))
    return [str(each.message) for each in caught]


def plain(comm: Any, shard_of: list[int], kind: str) -> None:
    generator = torch.Generator().manual_seed(shard_of[comm.rank])
    metric: Any = tm.MeanMetric()
    if kind == "one number":
        metric.update(0.001)  # a learning rate
    elif kind == "small counts":
        metric = tm.SumMetric()
        metric.update(float(shard_of[comm.rank] % 2))
    elif kind == "lists":
        metric = BinaryAUROC()
        metric.update(torch.rand(9, generator=generator), torch.arange(9) % 2)
    else:
        metric = MulticlassConfusionMatrix(5)
        classes = torch.randint(5, (2, 5000), generator=generator)
        metric.update(classes[0], classes[1])
    dm.sync_and_compute(metric, comm=comm)


@pytest.mark.parametrize("kind", ["lists", "counts"])
def test_ranks_that_hold_the_same_and_ranks_that_do_not(kind: str) -> None:
    (text,) = said([0, 0, 1, 1], kind)
    assert "ranks 0-1 and 2-3 hold the same data: it is counted 2 times" in text
    assert "layout(" in text
    for shard_of in ([0, 1], [0, 0, 1]):
        assert said(shard_of, kind) == []


@pytest.mark.parametrize("kind", ["one number", "small counts"])
def test_what_may_be_equal_by_chance(kind: str) -> None:
    assert said([0, 0, 0, 0], kind) == []


def test_it_is_an_error_on_every_rank_where_warnings_are() -> None:
    def work(comm: Any) -> str:
        with pytest.raises(dm.StateError) as raised:
            plain(comm, [0, 0], "lists")
        return raised.value.what

    assert len(set(run(2, work))) == 1
