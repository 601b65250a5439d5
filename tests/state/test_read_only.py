"""Items that go into the list of all ranks as they are: only of metrics that leave them alone."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics.retrieval import RetrievalMAP

from benchmarks.conformance.case import Case, batches
from benchmarks.conformance.catalogue import cases
from distmetrics import sync_and_compute, synced
from distmetrics.state.adapters import targets
from distmetrics.testing import run
from tests.backends import both_backends
from tests.state.samples import Items


def read_only(metric: Any) -> list[tuple[Any, str]]:
    return [(each.metric, spec.name) for each in targets(metric) for spec in each.specs.each if spec.read_only]


def filled(case: Case) -> Any:
    """The metric with data, or None where it can't be made here."""
    try:
        metric = case.make()
    except (ModuleNotFoundError, RuntimeError):  # a package that is not installed; one of them says so by the latter
        return None
    if read_only(metric):
        for batch in batches(case, "ragged", 2, 0):
            metric.update(*batch.args, **batch.kwargs)
    return metric


def test_no_metric_of_torchmetrics_changes_its_items_as_it_computes() -> None:
    """All classes that can be made here: what the adapter takes for granted."""
    warnings.simplefilter("ignore")
    seen = set()
    for case in cases().values():
        metric = filled(case)
        states = [] if metric is None else read_only(metric)
        items = [item for owner, name in states for item in getattr(owner, name) if isinstance(item, Tensor)]
        if not items:
            continue
        seen.add(case.kind)
        before = [(item._version, item.clone()) for item in items]
        metric.compute()
        for item, (version, copy) in zip(items, before, strict=True):
            assert item._version == version, case.name
            assert item.view(-1).tolist().__repr__() == copy.view(-1).tolist().__repr__(), case.name  # NaN is itself
    assert len(seen) >= 15, seen


def shares(comm: Any, kind: type, counts: list[int]) -> tuple[bool, bool, bool]:
    """Whether this rank's items are in the list of all ranks themselves; whether they are as before afterwards."""
    metric = kind()
    for place in range(counts[comm.rank]):
        if kind is Items:
            metric.update(torch.full((3,), 1.0 * place))
        else:
            metric.update(torch.rand(3), torch.tensor([0, 1, 1]), indexes=torch.zeros(3, dtype=torch.long))
    name = "items" if kind is Items else "preds"
    local = [*getattr(metric, name)]
    with synced(metric, comm=comm):
        inside = getattr(metric, name)
        own = inside[sum(counts[: comm.rank]) :][: len(local)]
        shared = [one is other for one, other in zip(own, local, strict=True)]
    after = getattr(metric, name)
    return any(shared), all(shared), len(after) == len(local) and all(map(lambda x, y: x is y, after, local))


@both_backends
def test_only_lists_of_torchmetrics_own_metrics_are_not_copied(backend: Any) -> None:
    """Of a user's class nobody knows what its compute does; a single item may be the value that compute returns."""
    assert run(3, shares, RetrievalMAP, [2, 0, 3], backend=backend) == [
        (True, True, True),
        (False, True, True),
        (True, True, True),
    ]
    assert run(2, shares, RetrievalMAP, [1, 1], backend=backend) == [(False, False, True)] * 2
    assert run(2, shares, Items, [2, 2], backend=backend) == [(False, False, True)] * 2


def with_gradient(comm: Any) -> tuple[bool, bool]:
    metric = RetrievalMAP()
    scores = torch.rand(3, requires_grad=True)
    for _ in range(2):
        metric.update(scores * 1, torch.tensor([0, 1, 1]), indexes=torch.zeros(3, dtype=torch.long))
    metric.preds = [item * scores for item in metric.preds]  # update detaches here; another metric's need not
    with synced(metric, comm=comm):
        inside = any(item.requires_grad for item in metric.preds)
    sync_and_compute(metric, comm=comm)
    return inside, all(item.requires_grad for item in metric.preds)


@pytest.mark.parametrize("world_size", [2])
def test_items_that_need_a_gradient_are_copied_without(world_size: int) -> None:
    """All ranks' are alike, and the local ones keep theirs."""
    assert run(world_size, with_gradient) == [(False, True)] * world_size


def changed_inside(comm: Any, how: str) -> bool:
    """Whether local items are the same objects with the same numbers after a block that changed them in place."""
    metric = RetrievalMAP()
    for _ in range(2 + comm.rank):
        metric.update(torch.rand(3), torch.tensor([0, 1, 1]), indexes=torch.zeros(3, dtype=torch.long))
    local, copies = [*metric.preds], [item.clone() for item in metric.preds]
    view = local[0][:1]
    with synced(metric, comm=comm):
        for item in metric.preds:
            if how == "zero":
                item.zero_()
            else:
                item.resize_(7)
    same = all(map(torch.equal, metric.preds, copies)) and all(map(lambda x, y: x is y, metric.preds, local))
    return same and (how == "resize" or torch.equal(view, copies[0][:1]))


@both_backends
@pytest.mark.parametrize("how", ["zero", "resize"])
def test_what_a_block_does_to_items_is_undone(backend: Any, how: str) -> None:
    """Whoever does it: the block, a wrapper of the user's, a compute that was put in place of the class's own."""
    assert run(2, changed_inside, how, backend=backend) == [True, True]


def in_inference_mode(comm: Any) -> list[bool]:
    metric = RetrievalMAP()
    with torch.inference_mode():
        for _ in range(2):
            metric.update(torch.rand(3), torch.tensor([0, 1, 1]), indexes=torch.zeros(3, dtype=torch.long))
    local = [*metric.preds]
    with synced(metric, comm=comm):
        return [any(item is other for other in metric.preds) for item in local]


def test_items_whose_changes_torch_does_not_count_are_copied() -> None:
    """Those of inference mode."""
    assert run(2, in_inference_mode) == [[False, False]] * 2
