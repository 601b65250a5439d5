"""The values of all ranks become the number of one process, or the same error everywhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryAccuracy, BinaryConfusionMatrix, BinaryF1Score

from distmetrics.comm.communicator import SingleCommunicator
from distmetrics.errors import ConfigurationError, InputError, InputTypeError, MismatchError
from distmetrics.run.logbook import LogBook, LogOptions, batch_size_of
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.stall_counter import stalls

NAN, INF = float("nan"), float("inf")


def book(comm=None, stage="validate", module=None, **options):
    comm = SingleCommunicator() if comm is None else comm
    return LogBook(stage, comm, nn.Module() if module is None else module, **options)


def logged(book, name, value, batch=None, loader=0, **options):
    if batch is not None:
        book.begin_step(batch, loader)
    book.log(name, value, LogOptions(**options))
    book.end_step()


def floats(values):
    return {name: float(value) for name, value in values.items()}


def epoch(book):
    return floats(book.close().values)


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
                for name, value in (("mean", x.mean()), ("sum", x.sum())):
                    logged(own, name, value, x, reduce_fx=name)
                for name, value in (("max", x.max()), ("min", x.min())):
                    logged(own, name, value, x, reduce_fx=name)
        return epoch(own)

    first, *others = run(4, rank)
    assert all(other == first for other in others)
    if not samples:
        assert first == {}
        return
    assert first["mean"] == pytest.approx(math.fsum(samples) / len(samples), rel=1e-9, abs=1e-6)
    assert first["sum"] == pytest.approx(math.fsum(samples), rel=1e-9, abs=1e-6)
    assert (first["max"], first["min"]) == (max(samples), min(samples))


@pytest.mark.parametrize("bad", [NAN, INF])
def test_what_is_not_finite_counts(bad):
    def rank(comm):
        own = book(comm)
        for value in (1.0, bad if comm.rank == 1 else 2.0, 3.0):
            for reduce_fx in ("mean", "sum", "max", "min"):
                logged(own, reduce_fx, value, torch.zeros(2), reduce_fx=reduce_fx)
        return epoch(own)

    expected = dict.fromkeys(("mean", "sum", "max", "min"), bad)
    if bad == INF:
        expected["min"] = 1.0
    for values in run(3, rank):
        assert values == pytest.approx(expected, nan_ok=True)


def test_whose_values_count_and_by_how_much():
    def rank(comm):
        own, r, x = book(comm), comm.rank, torch.zeros(5 - 3 * comm.rank)
        logged(own, "count", torch.tensor(2**40 + r), x, reduce_fx="sum")
        logged(own, "mean", torch.tensor(1 + r), x)
        logged(own, "flag", torch.tensor(r == 0), x)
        for count in (0, 3) if r else (0,):
            some = torch.arange(float(count))
            logged(own, "neutral", some.mean(), some)  # NaN without samples
        if r:  # a rank without a batch takes part
            logged(own, "late", float(r), torch.zeros(r), on_step=True)
        else:
            logged(own, "guarded", 7.0, torch.zeros(1), rank_zero_only=True)
        logged(own, "own", r, torch.zeros(1), sync_dist=False)
        logged(own, "first", 5 + r, torch.zeros(1), rank_zero_only=True)
        # values of hooks weigh one a rank unless told
        logged(own, "plain", float(r))
        logged(own, "weighted", float(r), batch_size=1 + 2 * r)
        logged(own, "same", 0.1)
        found = own.close()
        return floats(found.values), found.local

    known = {"count": 2**41 + 1, "mean": 9 / 7, "flag": 5 / 7, "neutral": 1.0, "late": 1.0}
    known |= {"late_epoch": 1.0, "guarded": 7, "first": 5, "plain": 0.5, "weighted": 0.75}
    for index, found in enumerate(run(2, rank)):
        assert found == (known | {"own": index, "same": 0.1}, {"own"})
    alone = book(stage="train")
    logged(alone, "x", 1.0, torch.zeros(1), sync_dist=False, on_epoch=True)
    assert (alone.close().local, alone.step_local) == (set(), set())


def test_a_book_of_a_rank_that_logs_otherwise_is_one_error_on_every_rank():
    def rank(comm):
        own = book(comm)
        names = ("b", "a") if comm.rank else ("a", "b")
        for name in names if comm.rank < 2 else ():
            reduce_fx = "sum" if comm.rank else "mean"
            logged(own, name, 1.0, torch.zeros(1), reduce_fx=reduce_fx)
        return own.close()

    ended = outcomes(3, rank)
    assert {type(outcome.error) for outcome in ended} == {MismatchError}
    (text,) = {str(outcome.error) for outcome in ended}
    assert text.startswith("ranks log 'a' in two ways\n\n  rank 0  as a mean over all ranks, first")
    assert "  rank 1  as a sum over all ranks, first at " in text
    assert "  rank 2  not logged\n" in text

    def kinds(comm):
        module = nn.Module()
        module.acc = MeanMetric()
        own = book(comm, module=module)
        logged(own, "x", 1.0 if comm.rank else module.acc, torch.zeros(1))
        return own.close()

    assert {type(outcome.error) for outcome in outcomes(2, kinds)} == {MismatchError}


def test_training_steps_are_logged_by_themselves_and_epochs_on_request():
    own = book(stage="train")
    for value in (1.0, 4.0):
        logged(own, "by_step", value, torch.zeros(1))
        logged(own, "both", value, torch.zeros(1), on_epoch=True)
        logged(own, "by_epoch", value, torch.zeros(1), on_step=False, on_epoch=True)
    assert floats(own.step_values) == {"by_step": 4.0, "both_step": 4.0}
    assert epoch(own) == {"both": 2.5, "both_epoch": 2.5, "by_epoch": 2.5}


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
        counts.append(len(recorder.calls))
        return counts[:2], counts[-1] - counts[-2], floats(own.step_values)

    values = {"own": 1.0, "a": 0.75, "b": 1.0, "c": 3.0, "of 0": 0.0, "of 1": 1.0}
    assert run(2, rank) == [([0, 1], 1, values)] * 2


def test_what_an_epoch_costs():
    def rank(comm):
        module = nn.Module()
        module.parts = nn.ModuleList([BinaryAccuracy(), BinaryF1Score()])
        module.sum = SumMetric()
        recorder = RecordingCommunicator(comm)
        own = book(recorder, module=module)
        for index in range(20):
            logged(own, f"v{index}", float(comm.rank), torch.zeros(1 + comm.rank))
        for index, metric in enumerate(module.parts):
            metric.update(torch.tensor([0.9, 0.2]), torch.tensor([1, comm.rank]))
            logged(own, f"m{index}", metric, torch.zeros(1))
        module.sum.update(1.0)
        logged(own, "sum", module.sum, torch.zeros(1))
        values = epoch(own)
        return values["v3"], values["m0"], values["sum"], [call.op for call in recorder.calls]

    assert run(2, rank) == [(2 / 3, 0.75, 2.0, ["all_gather", "all_gather"])] * 2


def test_what_a_rank_sends_does_not_grow_with_the_world():
    def rank(comm):
        recorder = RecordingCommunicator(comm)
        own = book(recorder)
        for index in range(2000):  # more than fits inline
            logged(own, f"x{index}", float(comm.rank), torch.zeros(2))
        return epoch(own)["x7"], [(call.op, call.nbytes) for call in recorder.calls]

    (two, *_), (four, *_) = run(2, rank), run(4, rank)
    assert (two[0], four[0]) == (0.5, 1.5)
    assert two[1] == four[1]
    assert [op for op, _ in two[1]] == ["all_gather", "all_reduce sum"]


def test_metric_objects_are_computed_over_all_ranks_and_reset_also_without_batches():
    def rank(comm):
        module = nn.Module()
        module.f1 = BinaryF1Score()
        parts = {"acc": BinaryAccuracy(), "f1": BinaryF1Score()}
        module.all = MetricCollection(parts, prefix="val_")
        own = book(comm, module=module)
        if comm.rank:
            scores = torch.tensor([0.9, 0.8, 0.1])
            module.f1.update(scores, torch.tensor([1, 0, comm.rank - 1]))
            logged(own, "f1", module.f1, torch.zeros(3))
            module.all.update(torch.tensor([0.9, 0.2]), torch.tensor([1, 1]))
            own.begin_step(torch.zeros(2))
            own.log_metric("log_dict", module.all, LogOptions(prog_bar=True), bare=True)
            own.log("c", module.all, LogOptions(logger=False))
        values = epoch(own)
        has_names = own.prog_bar >= names and own.unlogged >= below.keys()
        return values, module.f1.update_count, has_names == (comm.rank > 0)

    whole = BinaryF1Score()
    whole.update(torch.tensor([0.9, 0.8, 0.1] * 2), torch.tensor([1, 0, 0, 1, 0, 1]))
    values = {"f1": float(whole.compute()), "val_acc": 0.5, "val_f1": 2 / 3}
    names = {"val_acc", "val_f1"}
    below = {f"c/{name}": values[name] for name in names}
    for found in run(3, rank):
        assert found == (pytest.approx(values | below), 0, True)


def test_several_loaders_have_their_own_values():
    def rank(comm):
        module = nn.Module()
        module.acc = MeanMetric()
        own = book(comm, module=module, loaders=2)
        logged(own, "x", 1.0, torch.zeros(1), loader=0)
        if comm.rank:
            logged(own, "x", 5.0, torch.zeros(1), loader=1)
        logged(own, "all", 9.0)
        found = epoch(own)
        module.acc.update(1.0)
        if comm.rank:
            logged(own, "m", module.acc, torch.zeros(1), loader=0)
            logged(own, "m", module.acc, torch.zeros(1), loader=1)
        with pytest.raises(ConfigurationError, match=r"self\.acc is logged for several loaders"):
            own.close()
        return found

    values = {"x/dataloader_idx_0": 1.0, "x/dataloader_idx_1": 5.0, "all": 9.0}
    assert run(2, rank) == [values] * 2


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = BinaryConfusionMatrix()
        self.mean = MeanMetric()


NO_NUMBER = r"the value of 'x' is no number: "
NEITHER = {"on_step": False, "on_epoch": False}


@pytest.mark.parametrize(
    ("error", "message", "value", "options"),
    [
        (InputError, r"'x' is a tensor of shape \[2\] .* no real number\nDo: ", torch.zeros(2), {}),
        (InputError, r"a tensor of shape \[0\]", torch.zeros(0), {}),
        (InputError, f"{NO_NUMBER}.* not 'complex'", torch.tensor(1j), {}),
        (InputTypeError, f"{NO_NUMBER}the text 'high'\nDo: ", "high", {}),
        (InputTypeError, f"{NO_NUMBER}.*NoneType", None, {}),
        (ConfigurationError, "mean, sum, max, min, got 'median'", 1.0, {"reduce_fx": "median"}),
        (ConfigurationError, "neither on_step nor on_epoch", 1.0, NEITHER),
        (ConfigurationError, "rank 0's own", 1.0, {"sync_dist": True, "rank_zero_only": True}),
        (ConfigurationError, "no attribute of the module", MeanMetric(), {}),
        (ConfigurationError, "log what metric", "mean", {"on_step": True}),
        (ConfigurationError, "log what metric", "mean", {"on_epoch": False}),
        (ConfigurationError, "over all ranks", "mean", {"sync_dist": False}),
        (ConfigurationError, "over all ranks", "mean", {"rank_zero_only": True}),
        *[
            (InputError, "batch_size|weight of 'x' must", 1.0, {"batch_size": size})
            for size in (-1, INF, NAN, np.int64(-1), np.array([1, 2]), torch.tensor([2, 3]), "3")
        ],
    ],
)
def test_what_can_not_be_logged(error, message, value, options):
    module = Bare()
    value = module.mean if type(value) is str and value == "mean" else value
    with pytest.raises(error, match=message):
        logged(book(module=module), "x", value, torch.zeros(1), **options)


def test_names_that_can_not_be_logged_under():
    own = book(module=Bare())
    for name in (None, "", 5):
        with pytest.raises(InputTypeError, match="a name to log under must be a string, got"):
            logged(own, name, 1.0, torch.zeros(1))
    logged(own, "x", 1.0, torch.zeros(1))
    with pytest.raises(InputError, match=r"as a mean over all ranks, first at .*; now as a sum"):
        logged(own, "x", 1.0, torch.zeros(1), reduce_fx="sum")
    with pytest.raises(ConfigurationError, match="no step is under way"):
        book(stage="train").log("x", 1.0, LogOptions(on_step=True))
    module = Bare()
    own = book(module=module)
    module.matrix.update(torch.tensor([1]), torch.tensor([1]))
    logged(own, "x", module.matrix, torch.zeros(1))
    with pytest.raises(InputError, match=r"the value of 'self\.matrix' is a tensor of shape"):
        own.close()


def test_batch_sizes():
    assert batch_size_of(torch.zeros(3, 2), "x") == 3
    parts = {"a": torch.zeros(4)}, [torch.zeros(4, 4), "name"], torch.tensor(0.5)
    assert batch_size_of(parts, "x") == 4
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
    total = 3.0 if reduce_fx == "sum" else 1.0
    for again in (own, book(stage="train"), book(stage="train")):
        if again is not own:
            again.load([saved])
        again.begin_step(torch.zeros(4))
        again.log("x", torch.ones(1, dtype=dtype), options)
        assert float(again.close().values["x"]) == total


class Remembers(nn.Module):
    """Logs as a step does, on what passes for a device."""

    def __init__(self):
        super().__init__()
        self.book = book(stage="train", module=self)
        self.x, self.loss = torch.zeros(4), torch.tensor(2.0, requires_grad=True)

    def step(self):
        self.book.begin_step(self.x)
        for index in range(20):
            self.book.log(f"both_{index}", self.loss * index, LogOptions(on_epoch=True))
        self.book.log("own", self.loss, LogOptions())
        self.book.end_step()
        self.book.sync_step(everyone=True)


def test_a_step_waits_for_none_of_its_values():
    module = Remembers()
    assert stalls(module.step) == []
    with torch.no_grad():
        module.loss.mul_(2)  # a value is copied when it is logged
    assert stalls(module.step) == []
    assert float(module.book.step_values["own"]) == 4.0
    assert float(module.book.close().values["both_3"]) == (2.0 * 3 + 4.0 * 3) / 2
