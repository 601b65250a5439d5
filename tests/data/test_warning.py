"""A sync over a loader that repeats samples says so, and a right program is never warned."""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler
from torcheval.metrics import Mean
from torchmetrics import MeanMetric, MetricCollection, SumMetric

from distmetrics import RepeatedSamplesWarning, sync_and_compute
from distmetrics.data import exact
from distmetrics.testing import run
from tests.acceptance import ROOT
from tests.programs import Program

DATA = torch.arange(11.0)


def padded(comm: Any, data: Any = DATA, *, batch_size: int = 2, **options: Any) -> DataLoader[Any]:
    """Return a loader that repeats a sample on two ranks, as most do."""
    options = {"shuffle": False, **options}
    sampler = DistributedSampler(data, comm.world_size, comm.rank, **options)
    return DataLoader(data, batch_size=batch_size, sampler=sampler)


def warned(program: Callable[..., Any], *args: Any, world: int = 2) -> list[str]:
    """Return the warnings of a program on a world of threads."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(world, program, *args)
    texts = [str(each.message) for each in seen if issubclass(each.category, RepeatedSamplesWarning)]
    return [text[: len(WANTED)] for text in texts]  # what is for frameworks follows


def evaluate(val_loader: Any, metric: Any = None, **options: Any) -> Any:
    metric = metric or MeanMetric()
    for batch in val_loader:
        metric.update(batch)
    return sync_and_compute(metric, **options)


WANTED = "1 of 12 samples that a loader of a Tensor dealt out are repeats: evaluate with distmetrics.data.exact(loader)"


@pytest.mark.parametrize("make", [lambda: MetricCollection([MeanMetric(), SumMetric()]), Mean])
def test_a_loader_that_is_nowhere_in_sight(make: Any) -> None:
    """It is known by having been read, by a collection and by a metric that does not count its updates."""
    assert warned(lambda comm: evaluate(padded(comm), make())) == [WANTED]


def twice_and_some(comm: Any, **options: Any) -> None:
    """Feed a metric twice a batch, and one some batches only."""
    val_loader, twice, some = padded(comm), MeanMetric(), MeanMetric()
    for number, batch in enumerate(val_loader):
        twice.update(batch)
        twice.update(batch)
        if number < 2:
            some.update(batch)
    sync_and_compute([twice, some], **dict.fromkeys(options, val_loader))


def test_other_counts_are_silent_unless_the_loader_is_given() -> None:
    """A given one is looked at before the one that was read, one of training, too."""
    assert warned(twice_and_some) == []
    assert warned(lambda comm: twice_and_some(comm, loader=True)) == [WANTED]
    for given, wanted in ((lambda comm: exact(padded(comm)), []), (partial(padded, shuffle=True), [WANTED])):
        assert warned(lambda comm, given=given: evaluate(padded(comm), loader=given(comm))) == wanted


def two(comm: Any, count: int) -> None:
    """Read two loaders of one length, of which the one that was read last counts."""
    for loader in (padded(comm), padded(comm, torch.arange(float(count)))):
        metric = MeanMetric()
        for batch in loader:
            metric.update(batch)
    sync_and_compute(metric)


def within(comm: Any) -> None:
    """Ranks that sync among themselves may not have the repeats at all."""
    data = torch.arange(10.0)
    sampler: Any = DistributedSampler(data, 4, comm.rank, shuffle=False)
    evaluate(DataLoader(data, sampler=sampler))


def beside(comm: Any) -> None:
    """A list of batches is another loader, also for a metric that does not count its updates."""
    assert len([*padded(comm)]) == 3
    evaluate(exact([DATA]), Mean())


def train(comm: Any) -> None:
    """Metrics of training, synced at each step or after an epoch, and of an evaluation as it goes on."""
    same_length, metric, running = padded(comm, shuffle=True), MeanMetric(), MeanMetric()
    for batch in padded(comm, torch.arange(31.0), shuffle=True):
        running.update(batch)
        sync_and_compute(running)
    for batch in same_length:
        metric.update(batch)
    sync_and_compute(metric)
    metric = MeanMetric()
    for batch in padded(comm):  # in order
        metric.update(batch)
        sync_and_compute(metric)


@pytest.mark.parametrize(
    ("program", "times"),
    [(partial(two, count=11), 1), (partial(two, count=12), 0), (within, 0), (beside, 0), (train, 0)],
)
def test_right_programs_are_not_told(program: Any, times: int) -> None:
    assert len(warned(program)) == times


def test_one_update_may_be_of_what_a_trainer_has_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function is named where there may be a trainer, and not where its package alone was imported."""
    trainer = "transformers.trainer"
    monkeypatch.setitem(sys.modules, "transformers", warnings)
    monkeypatch.delitem(sys.modules, trainer, raising=False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(2, lambda comm: evaluate(padded(comm, batch_size=6)))
    assert ["attach" in str(each.message) for each in seen] == [False]
    monkeypatch.setitem(sys.modules, trainer, warnings)
    assert len(warned(lambda comm: evaluate(padded(comm, batch_size=6)))) == 1, "a loop of the user's own"
    its: dict[str, Any] = {"__name__": trainer}
    exec("def loop(loader): return [*loader]", its)
    assert warned(lambda comm: evaluate(its["loop"](padded(comm, batch_size=6)))) == []


class Odd(DistributedSampler[Any]):
    """A sampler whose length can't be asked for."""

    def __len__(self) -> int:
        raise RuntimeError("no")


def test_a_loader_is_read_whatever_its_sampler_is_and_not_kept_alive() -> None:
    class Unhashable(DataLoader[Any]):
        __hash__ = None  # type: ignore[assignment]

    def program(comm: Any) -> None:
        loader: Any = DataLoader(DATA, sampler=Odd(DATA, comm.world_size, comm.rank))
        evaluate(loader)
        evaluate(Unhashable(DATA, batch_size=2, sampler=padded(comm).sampler))
        loader = padded(comm)
        assert len([*loader]) == 3
        gone = weakref.ref(loader)
        del loader
        assert gone() is None

    assert warned(program) == []


def test_no_guard_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where it is off from the start, torch's loader is left alone."""
    monkeypatch.setenv("DISTMETRICS_GUARD", "off")
    assert warned(lambda comm: evaluate(padded(comm))) == []
    code = "import distmetrics, torch.utils.data as d; print(d.DataLoader.__iter__.__module__)"
    done = Program(["-c", code], cwd=ROOT, env=os.environ, fresh=True).end(timeout=90)
    assert done.stdout == "torch.utils.data.dataloader\n"
