"""The values of all ranks become the number of one process, or the same error everywhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torchmetrics import MeanMetric, SumMetric
from torchmetrics.classification import BinaryAccuracy, BinaryConfusionMatrix, BinaryF1Score

from distmetrics.comm.communicator import SingleCommunicator
from distmetrics.errors import ConfigurationError, InputError, InputTypeError, MismatchError
from distmetrics.run.logbook import LogBook, LogOptions, batch_size_of
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import same_error
from tests.stall_counter import stalls

NAN, INF = float("nan"), float("inf")
KINDS = ("mean", "sum", "max", "min")
ONE = torch.zeros(1)  # a batch of one sample


class Holds(nn.Module):
    """Holds metrics by their names."""

    def __init__(self, **metrics):
        super().__init__()
        for name, metric in metrics.items():
            setattr(self, name, metric)


def book(comm=None, stage="validate", module=None, **options):
    return LogBook(stage, comm or SingleCommunicator(), module or Holds(), **options)


def logged(book, name, value, batch=None, loader=0, **options):
    if batch is not None:
        book.begin_step(batch, loader)
    book.log(name, value, LogOptions(**options))
    book.end_step()


def epoch(book):
    return {name: float(value) for name, value in book.close().values.items()}


finite = st.floats(-1e6, 1e6, allow_nan=False)
batches = st.lists(st.lists(finite, min_size=1, max_size=5), max_size=8)


@given(batches, st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_a_mean_is_the_mean_over_all_samples_however_they_are_shared(data, owners):
    samples = [value for batch in data for value in batch]

    def rank(comm):
        own = book(comm)
        for batch, owner in zip(data, owners, strict=False):
            if owner == comm.rank:
                x = torch.tensor(batch, dtype=torch.float64)
                for name in KINDS:
                    logged(own, name, getattr(x, name)(), x, reduce_fx=name)
        return epoch(own)

    first, *others = run(4, rank)
    assert all(other == first for other in others)
    if not samples:
        assert first == {}
        return
    assert first["mean"] == pytest.approx(math.fsum(samples) / len(samples), rel=1e-9, abs=1e-6)
    assert first["sum"] == pytest.approx(math.fsum(samples), rel=1e-9, abs=1e-6)
    assert (first["max"], first["min"]) == (max(samples), min(samples))


def test_whose_values_count_and_by_how_much():
    def rank(comm):
        own, r, x = book(comm), comm.rank, torch.zeros(5 - 3 * comm.rank)
        logged(own, "count", torch.tensor(2**40 + r), x, reduce_fx="sum")
        logged(own, "flag", torch.tensor(r == 0), x)
        for count in (0, 3) if r else (0,):
            some = torch.arange(float(count))
            logged(own, "neutral", some.mean(), some)  # NaN without samples
        if r:  # a rank without a batch takes part
            logged(own, "late", float(r), torch.zeros(r), on_step=True)
        for kind in KINDS:
            logged(own, f"bad {kind}", NAN if r else 1.0, ONE, reduce_fx=kind)
        logged(own, "own", r, ONE, sync_dist=False)
        logged(own, "first", 5 + r, ONE, rank_zero_only=True)
        logged(own, "same", 0.1)  # a value of a hook weighs one a rank
        found = own.close()
        return {name: float(value) for name, value in found.values.items()}, found.local

    known = {"count": 2**41 + 1, "flag": 5 / 7, "neutral": 1.0, "late": 1.0, "late_epoch": 1.0}
    known |= {"first": 5, "same": 0.1, **{f"bad {kind}": NAN for kind in KINDS}}
    for index, (values, local) in enumerate(run(2, rank)):
        assert values == pytest.approx(known | {"own": index}, rel=0, abs=0, nan_ok=True)
        assert local == {"own"}
    alone = book(stage="train")
    logged(alone, "x", 1.0, ONE, sync_dist=False, on_epoch=True)
    assert (alone.close().local, alone.step_local) == (set(), set())


def test_a_book_of_a_rank_that_logs_otherwise_is_one_error_on_every_rank():
    def rank(comm):
        own = book(comm)
        for name in ((), "ab", "ba")[comm.rank - 2]:
            logged(own, name, 1.0, ONE, reduce_fx="sum" if comm.rank else "mean")
        return own.close()

    text = str(same_error(outcomes(3, rank), MismatchError))
    assert text.startswith("ranks log 'a' in two ways\n\n  rank 0  as a mean over all ranks, first")
    assert "  rank 1  as a sum over all ranks, first at " in text
    assert "  rank 2  not logged\n" in text

    def kinds(comm):
        own = book(comm, module=(module := Holds(acc=MeanMetric())))
        logged(own, "x", 1.0 if comm.rank else module.acc, ONE)
        return own.close()

    same_error(outcomes(2, kinds), MismatchError)


def test_what_a_step_costs():
    def rank(comm):
        recorder = RecordingCommunicator(comm)
        own, x = book(recorder, "train"), torch.zeros(1 + 2 * comm.rank)
        logged(own, "own", 1.0, x)
        own.sync_step(everyone=True)
        counts = [len(recorder.calls)]
        logged(own, "a", float(comm.rank), x, sync_dist=True)
        logged(own, "b", float(comm.rank), x, sync_dist=True, reduce_fx="sum")
        own.sync_step(everyone=True)
        counts.append(len(recorder.calls))
        if comm.rank:  # the other has no batch, and joins
            logged(own, "c", 3.0, x, sync_dist=True)
        own.sync_step(everyone=False)
        for _ in range(3):  # ranks that log other names tell them once an epoch
            counts.append(len(recorder.calls))
            logged(own, f"of {comm.rank}", float(comm.rank), x, sync_dist=True)
            own.sync_step(everyone=True)
        return counts[:2], len(recorder.calls) - counts[-1], own.step_values

    values = {"own": 1.0, "a": 0.75, "b": 1.0, "c": 3.0, "of 0": 0.0, "of 1": 1.0}
    assert run(2, rank) == [([0, 1], 1, values)] * 2


def test_what_an_epoch_costs_and_what_a_rank_sends_does_not_grow_with_the_world():
    def rank(comm, count):
        module = Holds(parts=nn.ModuleList([BinaryAccuracy(), BinaryF1Score()]), sum=SumMetric())
        recorder = RecordingCommunicator(comm)
        own = book(recorder, module=module)
        for index in range(count):
            logged(own, f"v{index}", float(comm.rank), torch.zeros(1 + comm.rank))
        if count == 20:
            for index, metric in enumerate(module.parts):
                metric.update(torch.tensor([0.9, 0.2]), torch.tensor([1, comm.rank]))
                logged(own, f"m{index}", metric, ONE)
        module.sum.update(1.0)
        logged(own, "sum", module.sum, ONE)
        values = epoch(own)
        own = values["v7"], values.get("m0"), values["sum"]
        return own, [call.op for call in recorder.calls], recorder.calls[0].nbytes

    assert run(2, rank, 20)[0][:2] == ((2 / 3, 0.75, 2.0), ["all_gather"] * 2)
    two, four = run(2, rank, 2000)[0], run(4, rank, 2000)[0]  # more than fits inline
    assert (two[0][0], four[0][0]) == (2 / 3, 2.0)
    assert two[1:] == four[1:]


def test_a_metric_of_several_loaders_is_refused():
    def rank(comm):
        own = book(comm, module=(module := Holds(acc=MeanMetric())), loaders=2)
        module.acc.update(1.0)
        for loader in (0, 1) if comm.rank else ():
            logged(own, "m", module.acc, ONE, loader=loader)
        own.close()

    for outcome in outcomes(2, rank):
        assert isinstance(outcome.error, ConfigurationError)
        assert "self.acc is logged for several loaders" in str(outcome.error)


NO_NUMBER = r"the value of 'x' is no number: "
METRIC = MeanMetric()


@pytest.mark.parametrize(
    ("error", "message", "value", "options"),
    [
        (InputError, r"'x' is a tensor of shape \[0\] .* no real number\nDo: ", torch.zeros(0), {}),
        (InputError, f"{NO_NUMBER}.* not 'complex'", torch.tensor(1j), {}),
        (InputTypeError, f"{NO_NUMBER}.*NoneType", None, {}),
        (ConfigurationError, "mean, sum, max, min, got 'median'", 1.0, {"reduce_fx": "median"}),
        (ConfigurationError, "rank 0's own", 1.0, {"sync_dist": True, "rank_zero_only": True}),
        (ConfigurationError, "no attribute of the module", MeanMetric(), {}),
        (ConfigurationError, "log what metric", METRIC, {"on_step": True}),
        (ConfigurationError, "log what metric", METRIC, {"on_epoch": False}),
        (ConfigurationError, "over all ranks", METRIC, {"sync_dist": False}),
        (ConfigurationError, "over all ranks", METRIC, {"rank_zero_only": True}),
        *[
            (InputError, "batch_size|weight of 'x' must", 1.0, {"batch_size": size})
            for size in (-1, INF, NAN, np.int64(-1), np.array([1, 2]), torch.tensor([2, 3]), "3")
        ],
    ],
)
def test_what_can_not_be_logged(error, message, value, options):
    with pytest.raises(error, match=message):
        logged(book(module=Holds(mean=METRIC)), "x", value, ONE, **options)


def test_names_that_can_not_be_logged_under():
    own = book(module=(module := Holds(matrix=BinaryConfusionMatrix())))
    for name in (None, "", 5):
        with pytest.raises(InputTypeError, match="a name to log under must be a string, got"):
            logged(own, name, 1.0, ONE)
    logged(own, "x", 1.0, ONE)
    with pytest.raises(InputError, match=r"as a mean over all ranks, first at .*; now as a sum"):
        logged(own, "x", 1.0, ONE, reduce_fx="sum")
    module.matrix.update(torch.tensor([1]), torch.tensor([1]))
    logged(own, "y", module.matrix, ONE)
    with pytest.raises(InputError, match=r"the value of 'self\.matrix' is a tensor of shape"):
        own.close()


def test_batch_sizes():
    parts = {"a": torch.zeros(4)}, [torch.zeros(4, 4), "name"], torch.tensor(0.5)
    assert (batch_size_of(torch.zeros(3, 2), "x"), batch_size_of(parts, "x")) == (3, 4)
    with pytest.raises(InputError, match=r"tensors are \[\]\n.*self.log\('x', value, batch_size"):
        batch_size_of(["a", "b"], "x")
    with pytest.raises(InputError, match=r"first dimensions of the batch's tensors are \[2, 7\]"):
        batch_size_of({"image": torch.zeros(2, 3), "nodes": torch.zeros(7)}, "x")
    own, batch = book(stage="train"), ["no", "tensor"]  # is asked for only where it counts
    logged(own, "by_step", 1.0, batch)
    logged(own, "sum", 1.0, batch, on_epoch=True, reduce_fx="sum")
    with pytest.raises(InputError, match="how many samples"):
        logged(own, "mean", 1.0, batch, on_epoch=True)
    for size, value in ((1, 0.0), (torch.tensor([2]), 3.0), (np.int64(1), 6.0)):
        logged(own, "told", value, batch, on_epoch=True, on_step=False, batch_size=size)
    assert epoch(own)["told"] == 3.0  # the size changes from step to step


@pytest.mark.parametrize("reduce_fx", ["mean", "sum", "max"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool])
def test_what_is_done_to_a_value_after_it_was_logged_changes_nothing(reduce_fx, dtype):
    """Running sums are kept in place: not in the user's tensor, nor in a state that was saved."""
    options = LogOptions(on_step=True, on_epoch=True, reduce_fx=reduce_fx)
    own = book(stage="train")
    for _ in range(2):
        value = torch.ones((), dtype=dtype)
        own.begin_step(torch.zeros(4))
        own.log("x", value, options)
        value.zero_()
        saved = own.state()
        own.end_step()
    assert float(own.step_values["x_step"]) == 1.0
    for again in (own, book(stage="train"), book(stage="train")):
        if again is not own:
            again.load([saved])
        again.begin_step(torch.zeros(4))
        again.log("x", torch.ones(1, dtype=dtype), options)
        assert float(again.close().values["x"]) == (3.0 if reduce_fx == "sum" else 1.0)


def test_a_step_waits_for_none_of_its_values():
    own, x = book(stage="train"), torch.zeros(4)
    loss = torch.tensor(2.0, requires_grad=True)

    def step():
        own.begin_step(x)
        for index in range(20):
            own.log(f"both_{index}", loss * index, LogOptions(on_epoch=True))
        own.log("own", loss, LogOptions())
        own.end_step()
        own.sync_step(everyone=True)

    assert stalls(step) == []
    with torch.no_grad():
        loss.mul_(2)  # a value is copied when it is logged
    assert stalls(step) == []
    assert float(own.step_values["own"]) == 4.0
    assert float(own.close().values["both_3"]) == (2.0 * 3 + 4.0 * 3) / 2
