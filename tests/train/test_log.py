"""The values of all ranks become the number of one process, or the same error everywhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import BinaryAccuracy, BinaryConfusionMatrix, BinaryF1Score

from distmetrics.comm.communicator import SingleCommunicator
from distmetrics.errors import ConfigurationError, InputError, InputTypeError, MismatchError
from distmetrics.run.logbook import LogBook, Options, batch_size_of
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.stall_counter import stalls


def logged(logger, name, value, batch=None, loader=0, **options):
    if batch is not None:
        logger.begin_step(batch, loader)
    logger.log(name, value, Options(**options))
    logger.end_step()


def epoch(logger):
    return {name: float(value) for name, value in logger.close().values.items()}


finite = st.floats(-1e6, 1e6, allow_nan=False)
batches = st.lists(st.lists(finite, min_size=1, max_size=5), max_size=8)


@settings(deadline=None)
@given(batches, st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_a_mean_is_the_mean_over_all_samples_however_they_are_shared(data, owners):
    samples = [value for batch in data for value in batch]

    def rank(comm):
        logger = LogBook("validate", comm, nn.Module())
        for batch, owner in zip(data, owners, strict=False):
            if owner == comm.rank:
                x = torch.tensor(batch, dtype=torch.float64)
                logged(logger, "mean", x.mean(), x)
                logged(logger, "sum", x.sum(), x, reduce_fx="sum")
                logged(logger, "max", x.max(), x, reduce_fx="max")
                logged(logger, "min", x.min(), x, reduce_fx="min")
        return epoch(logger)

    first, *others = run(4, rank)
    assert all(other == first for other in others)
    if not samples:
        assert first == {}
        return
    assert first["mean"] == pytest.approx(math.fsum(samples) / len(samples), rel=1e-9, abs=1e-6)
    assert first["sum"] == pytest.approx(math.fsum(samples), rel=1e-9, abs=1e-6)
    assert (first["max"], first["min"]) == (max(samples), min(samples))


def test_counts_are_exact_and_integers_are_never_floored():
    def rank(comm):
        logger = LogBook("validate", comm, nn.Module())
        x = torch.zeros(5 - 3 * comm.rank)
        logged(logger, "count", torch.tensor(2**40 + comm.rank), x, reduce_fx="sum")
        logged(logger, "mean", torch.tensor(1 + comm.rank), x)
        logged(logger, "flag", torch.tensor(comm.rank == 0), x)
        return epoch(logger)

    assert run(2, rank) == [{"count": 2**41 + 1, "mean": 9 / 7, "flag": 5 / 7}] * 2


@pytest.mark.parametrize("reduce_fx", ["mean", "sum", "max", "min"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_counts(reduce_fx, bad):
    def rank(comm):
        logger = LogBook("validate", comm, nn.Module())
        for value in (1.0, bad if comm.rank == 1 else 2.0, 3.0):
            logged(logger, "x", value, torch.zeros(2), reduce_fx=reduce_fx)
        return epoch(logger)["x"]

    expected = 1.0 if reduce_fx == "min" and not math.isnan(bad) else bad
    for value in run(3, rank):
        assert value == pytest.approx(expected, nan_ok=True)


def test_a_batch_without_samples_is_neutral():
    def rank(comm):
        logger = LogBook("validate", comm, nn.Module())
        for count in (0, 3) if comm.rank else (0,):
            x = torch.arange(float(count))
            logged(logger, "x", x.mean(), x)  # NaN without samples
        return epoch(logger)

    assert run(2, rank) == [{"x": 1.0}] * 2


def test_a_rank_without_batches_takes_part_and_knows_the_result():
    def rank(comm):
        logger = LogBook("validate", comm, nn.Module())
        if comm.rank:
            logged(logger, "x", float(comm.rank), torch.zeros(comm.rank), on_step=True)
        return epoch(logger)

    assert run(3, rank) == [{"x": 5 / 3, "x_epoch": 5 / 3}] * 3


def test_ranks_that_log_a_name_differently_all_get_the_same_error():
    def rank(comm):
        logger = LogBook("validate", comm, nn.Module())
        if comm.rank < 2:
            logged(logger, "x", 1.0, torch.zeros(1), reduce_fx="sum" if comm.rank else "mean")
        return logger.close()

    texts = {str(outcome.error) for outcome in outcomes(3, rank)}
    assert all(type(outcome.error) is MismatchError for outcome in outcomes(3, rank))
    (text,) = texts
    assert text.startswith("ranks log 'x' in two ways\n\n  rank 0  as a mean over all ranks, first at ")
    assert "  rank 1  as a sum over all ranks, first at " in text
    assert "  rank 2  not logged\n" in text


@pytest.mark.parametrize(("bare", "name"), [(False, "all/mean"), (True, "mean")])
def test_the_values_of_a_collection_are_shown_where_it_is(bare, name):
    module = nn.Module()
    module.means = MetricCollection({"mean": MeanMetric()})
    logger = LogBook("validate", SingleCommunicator(), module)
    module.means.update(1.0)
    logger.log_metric("all", module.means, Options(prog_bar=True, logger=False), bare=bare)
    assert logger.close().values == {name: 1.0}
    assert name in logger.prog_bar & logger.unlogged


def test_a_value_and_a_metric_of_one_name_are_a_mismatch():
    def rank(comm):
        module = nn.Module()
        module.acc = MeanMetric()
        logger = LogBook("validate", comm, module)
        logged(logger, "x", 1.0 if comm.rank else module.acc, torch.zeros(1))
        return logger.close()

    assert all(isinstance(outcome.error, MismatchError) for outcome in outcomes(2, rank))


def test_own_values_and_rank_zeros():
    def rank(comm):
        logger = LogBook("validate", comm, nn.Module())
        logged(logger, "own", comm.rank, torch.zeros(1), sync_dist=False)
        logged(logger, "first", 5 + comm.rank, torch.zeros(1), rank_zero_only=True)
        if comm.rank == 0:
            logged(logger, "guarded", 7.0, rank_zero_only=True)
        result = logger.close()
        return {name: float(value) for name, value in result.values.items()}, result.local

    for rank_, (values, local) in enumerate(run(3, rank)):
        assert values == {"own": rank_, "first": 5, "guarded": 7}
        assert local == {"own"}


def test_in_one_process_nothing_is_a_ranks_own():
    logger = LogBook("train", SingleCommunicator(), nn.Module())
    logged(logger, "x", 1.0, torch.zeros(1), sync_dist=False, on_epoch=True)
    assert logger.close().local == set()
    assert logger.step_local == set()


def test_values_of_hooks_weigh_one_a_rank_unless_told():
    def rank(comm):
        logger = LogBook("validate", comm, nn.Module())
        logged(logger, "plain", float(comm.rank))
        logged(logger, "weighted", float(comm.rank), batch_size=1 + 2 * comm.rank)
        logged(logger, "same", 0.1)
        return epoch(logger)

    assert run(2, rank) == [{"plain": 0.5, "weighted": 0.75, "same": 0.1}] * 2


def test_training_steps_are_logged_by_themselves_and_epochs_on_request():
    logger = LogBook("train", SingleCommunicator(), nn.Module())
    for value in (1.0, 4.0):
        logged(logger, "by_step", value, torch.zeros(1))
        logged(logger, "both", value, torch.zeros(1), on_epoch=True)
        logged(logger, "by_epoch", value, torch.zeros(1), on_step=False, on_epoch=True)
    assert {name: float(value) for name, value in logger.step_values.items()} == {"by_step": 4.0, "both_step": 4.0}
    assert epoch(logger) == {"both": 2.5, "both_epoch": 2.5, "by_epoch": 2.5}


def test_a_synced_step_costs_one_exchange_and_weighs_samples():
    def rank(comm):
        recorder = RecordingCommunicator(comm)
        logger = LogBook("train", recorder, nn.Module())
        logged(logger, "a", float(comm.rank), torch.zeros(1 + 2 * comm.rank), sync_dist=True)
        logged(logger, "b", float(comm.rank), torch.zeros(2), sync_dist=True, reduce_fx="sum")
        logger.sync_step(everyone=True)
        return {name: float(value) for name, value in logger.step_values.items()}, len(recorder.calls)

    assert run(2, rank) == [({"a": 0.75, "b": 1.0}, 1)] * 2


def test_a_step_without_synced_values_costs_nothing():
    recorder = RecordingCommunicator(SingleCommunicator())
    logger = LogBook("train", recorder, nn.Module())
    logged(logger, "a", 1.0, torch.zeros(1))
    logger.sync_step(everyone=True)
    assert recorder.calls == []


def test_a_rank_without_a_batch_joins_the_exchange_of_a_step():
    def rank(comm):
        logger = LogBook("train", comm, nn.Module())
        if comm.rank:
            logged(logger, "a", 3.0, torch.zeros(2), sync_dist=True)
        logger.sync_step(everyone=False)
        return {name: float(value) for name, value in logger.step_values.items()}

    assert run(2, rank) == [{"a": 3.0}] * 2


def many_metrics(comm):
    module = nn.Module()
    module.parts = nn.ModuleList([BinaryAccuracy(), BinaryF1Score()])
    module.sum = SumMetric()
    recorder = RecordingCommunicator(comm)
    logger = LogBook("validate", recorder, module)
    for index in range(20):
        logged(logger, f"v{index}", float(comm.rank), torch.zeros(1 + comm.rank))
    for index, metric in enumerate(module.parts):
        metric.update(torch.tensor([0.9, 0.2]), torch.tensor([1, comm.rank]))
        logged(logger, f"m{index}", metric, torch.zeros(1))
    module.sum.update(1.0)
    logged(logger, "sum", module.sum, torch.zeros(1))
    values = epoch(logger)
    return values["v3"], values["m0"], values["sum"], [call.op for call in recorder.calls]


def test_an_epoch_costs_two_collectives_however_much_is_logged():
    assert run(2, many_metrics) == [(2 / 3, 0.75, 2.0, ["all_gather", "all_gather"])] * 2


def test_metric_objects_are_computed_over_all_ranks_and_reset_also_on_a_rank_without_batches():
    def rank(comm):
        module = nn.Module()
        module.f1 = BinaryF1Score()
        logger = LogBook("validate", comm, module)
        if comm.rank:
            module.f1.update(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([1, 0, comm.rank - 1]))
            logged(logger, "f1", module.f1, torch.zeros(3))
        return epoch(logger), module.f1.update_count

    whole = BinaryF1Score()
    whole.update(torch.tensor([0.9, 0.8, 0.1] * 2), torch.tensor([1, 0, 0, 1, 0, 1]))
    assert run(3, rank) == [({"f1": float(whole.compute())}, 0)] * 3


def test_a_collection_logs_under_its_own_names_or_below_one():
    def rank(comm):
        module = nn.Module()
        module.all = MetricCollection({"acc": BinaryAccuracy(), "f1": BinaryF1Score()}, prefix="val_")
        logger = LogBook("validate", comm, module)
        if comm.rank:
            module.all.update(torch.tensor([0.9, 0.2]), torch.tensor([1, 1]))
            logger.begin_step(torch.zeros(2))
            logger.log_metric("log_dict", module.all, Options(), bare=True)
            logger.log("c", module.all, Options())
        return epoch(logger)

    values = {"val_acc": 0.5, "val_f1": pytest.approx(2 / 3)}
    assert run(2, rank) == [values | {f"c/{name}": value for name, value in values.items()}] * 2


def test_several_loaders_have_their_own_values():
    def rank(comm):
        logger = LogBook("validate", comm, nn.Module(), loaders=2)
        logged(logger, "x", 1.0, torch.zeros(1), loader=0)
        if comm.rank:
            logged(logger, "x", 5.0, torch.zeros(1), loader=1)
        logged(logger, "all", 9.0)
        return epoch(logger)

    assert run(2, rank) == [{"x/dataloader_idx_0": 1.0, "x/dataloader_idx_1": 5.0, "all": 9.0}] * 2


def test_one_metric_object_for_two_loaders_is_refused_on_every_rank():
    def rank(comm):
        module = nn.Module()
        module.acc = MeanMetric()
        logger = LogBook("validate", comm, module, loaders=2)
        module.acc.update(1.0)
        if comm.rank:
            logged(logger, "x", module.acc, torch.zeros(1), loader=0)
            logged(logger, "x", module.acc, torch.zeros(1), loader=1)
        return logger.close()

    for outcome in outcomes(2, rank):
        assert isinstance(outcome.error, ConfigurationError)
        assert "self.acc is logged for several loaders" in str(outcome.error)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = BinaryConfusionMatrix()
        self.mean = MeanMetric()


@pytest.mark.parametrize(
    ("error", "message", "value", "options"),
    [
        (InputError, r"the value of 'x' is a tensor of shape \[2\] .* no real number\nDo: ", torch.zeros(2), {}),
        (InputError, r"a tensor of shape \[0\]", torch.zeros(0), {}),
        (InputError, r"the value of 'x' is no number: .* not 'complex'", torch.tensor(1j), {}),
        (InputTypeError, "is no number: the text 'high'", "high", {}),
        (InputTypeError, r"the value of 'x' is no number: the text '1.0'\nDo: ", "1.0", {}),
        (InputError, "must be finite and not negative, got inf", 1.0, {"batch_size": float("inf")}),
        (InputTypeError, "the value of 'x' is no number: .*NoneType", None, {}),
        (ConfigurationError, "mean, sum, max, min, got 'median'", 1.0, {"reduce_fx": "median"}),
        (InputError, "weight of 'x' must be finite and not negative, got -1", 1.0, {"batch_size": -1}),
        (
            InputError,
            r"the value of 'batch_size' is a tensor of shape \[2\]",
            1.0,
            {"batch_size": torch.tensor([2, 3])},
        ),
        (ConfigurationError, "neither on_step nor on_epoch", 1.0, {"on_step": False, "on_epoch": False}),
        (ConfigurationError, "rank 0's own", 1.0, {"sync_dist": True, "rank_zero_only": True}),
    ],
)
def test_what_can_not_be_logged(error, message, value, options):
    logger = LogBook("validate", SingleCommunicator(), Bare())
    with pytest.raises(error, match=message):
        logged(logger, "x", value, torch.zeros(1), **options)


@pytest.mark.parametrize("name", [None, "", 5])
def test_a_name_is_text(name):
    with pytest.raises(InputTypeError, match="a name to log under must be a string, got"):
        logged(LogBook("validate", SingleCommunicator(), Bare()), name, 1.0, torch.zeros(1))


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("log what metric", {"on_step": True}),
        ("log what metric", {"on_epoch": False}),
        ("over all ranks", {"sync_dist": False}),
        ("over all ranks", {"rank_zero_only": True}),
    ],
)
def test_what_a_metric_object_can_not_do(message, options):
    module = Bare()
    logger = LogBook("validate", SingleCommunicator(), module)
    with pytest.raises(ConfigurationError, match=message):
        logged(logger, "x", module.mean, torch.zeros(1), **options)


def test_a_metric_that_the_module_does_not_hold_is_refused():
    logger = LogBook("validate", SingleCommunicator(), Bare())
    with pytest.raises(ConfigurationError, match="no attribute of the module"):
        logged(logger, "x", MeanMetric(), torch.zeros(1))


def test_a_metric_whose_value_is_no_number_is_refused():
    module = Bare()
    logger = LogBook("validate", SingleCommunicator(), module)
    module.matrix.update(torch.tensor([1]), torch.tensor([1]))
    logged(logger, "x", module.matrix, torch.zeros(1))
    with pytest.raises(InputError, match=r"the value of 'self\.matrix' is a tensor of shape"):
        logger.close()


def test_one_name_in_two_ways_is_refused_at_once():
    logger = LogBook("validate", SingleCommunicator(), Bare())
    logged(logger, "x", 1.0, torch.zeros(1))
    with pytest.raises(InputError, match=r"was logged as a mean over all ranks, first at .*; now as a sum"):
        logged(logger, "x", 1.0, torch.zeros(1), reduce_fx="sum")


def test_steps_can_not_be_logged_outside_of_one():
    logger = LogBook("train", SingleCommunicator(), Bare())
    with pytest.raises(ConfigurationError, match="no step is under way"):
        logger.log("x", 1.0, Options(on_step=True))


def test_batch_sizes():
    assert batch_size_of(torch.zeros(3, 2), "x") == 3
    assert batch_size_of(({"a": torch.zeros(4)}, [torch.zeros(4, 4), "name"], torch.tensor(0.5)), "x") == 4
    with pytest.raises(InputError, match=r"batch's tensors are \[\]\n.*self.log\('x', value, batch_size"):
        batch_size_of(["a", "b"], "x")
    with pytest.raises(InputError, match=r"the first dimensions of the batch's tensors are \[2, 7\]"):
        batch_size_of({"image": torch.zeros(2, 3), "nodes": torch.zeros(7)}, "x")


def test_a_batch_size_is_only_asked_for_where_it_counts():
    logger = LogBook("train", SingleCommunicator(), Bare())
    logged(logger, "by_step", 1.0, ["no", "tensor"])
    logged(logger, "sum", 1.0, ["no", "tensor"], on_epoch=True, reduce_fx="sum")
    logged(logger, "told", 1.0, ["no", "tensor"], on_epoch=True, batch_size=2)
    with pytest.raises(InputError, match="how many samples"):
        logged(logger, "mean", 1.0, ["no", "tensor"], on_epoch=True)


@pytest.mark.parametrize("reduce_fx", ["mean", "sum", "max"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool])
def test_what_is_done_to_a_value_after_it_was_logged_changes_nothing(reduce_fx: str, dtype: torch.dtype) -> None:
    """Running sums are kept in place: not in the user's tensor, nor in a state that was saved."""
    module = nn.Module()
    logger = LogBook("train", SingleCommunicator(), module)
    for _ in range(2):
        value = torch.ones((), dtype=dtype)
        logger.begin_step(torch.zeros(4))
        logger.log("x", value, Options(on_step=True, on_epoch=True, reduce_fx=reduce_fx))
        value.zero_()
        saved = logger.state()
        logger.end_step()
    assert float(logger.step_values["x_step"]) == 1.0
    logger.begin_step(torch.zeros(4))
    logger.log("x", torch.ones(1, dtype=dtype), Options(on_step=True, on_epoch=True, reduce_fx=reduce_fx))
    assert float(logger.close().values["x"]) == (3.0 if reduce_fx == "sum" else 1.0)
    for _ in range(2):
        again = LogBook("train", SingleCommunicator(), module)
        again.load([saved])
        again.begin_step(torch.zeros(4))
        again.log("x", torch.ones((), dtype=dtype), Options(on_step=True, on_epoch=True, reduce_fx=reduce_fx))
        assert float(again.close().values["x"]) == (3.0 if reduce_fx == "sum" else 1.0)


def test_options_may_change_from_step_to_step() -> None:
    """The batch size does; how a name is logged must not."""
    logger = LogBook("train", SingleCommunicator(), nn.Module())
    for size, value in ((1, 0.0), (torch.tensor([2]), 3.0), (np.int64(1), 6.0)):
        logger.begin_step(torch.zeros(9))
        logger.log("x", value, Options(on_epoch=True, on_step=False, batch_size=size))
        logger.end_step()
    assert float(logger.close().values["x"]) == 3.0
    logger.begin_step(torch.zeros(9))
    with pytest.raises(InputError, match="was logged as a mean over all ranks"):
        logger.log("x", 1.0, Options(on_epoch=True, on_step=False, reduce_fx="max"))
    for size in (-1, np.int64(-1), np.array([1, 2]), torch.tensor([1, 2]), float("nan"), "3"):
        with pytest.raises(InputError, match=r"batch_size|weight"):
            logger.log("x", 1.0, Options(on_epoch=True, on_step=False, batch_size=size))


class Remembers(nn.Module):
    """Logs as a step does, on what passes for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.book = LogBook("train", SingleCommunicator(), self)
        self.x, self.loss = torch.zeros(4), torch.tensor(2.0, requires_grad=True)

    def step(self) -> None:
        self.book.begin_step(self.x)
        for index in range(20):
            self.book.log(f"both_{index}", self.loss * index, Options(on_epoch=True))
        self.book.log("own", self.loss, Options())
        self.book.end_step()
        self.book.sync_step(everyone=True)


def test_a_step_waits_for_none_of_its_values() -> None:
    module = Remembers()
    assert stalls(module.step) == []
    with torch.no_grad():
        module.loss.mul_(2)  # a value is copied when it is logged
    assert stalls(module.step) == []
    assert float(module.book.step_values["own"]) == 4.0
    assert float(module.book.close().values["both_3"]) == (2.0 * 3 + 4.0 * 3) / 2


def test_ranks_that_log_other_names_tell_them_once_an_epoch() -> None:
    def rank(comm):
        recorder = RecordingCommunicator(comm)
        logger = LogBook("train", recorder, nn.Module())
        counts = []
        for _ in range(3):
            before = len(recorder.calls)
            logged(logger, f"of {comm.rank}", float(comm.rank), torch.zeros(2), sync_dist=True)
            logger.sync_step(everyone=True)
            counts.append(len(recorder.calls) - before)
        return counts, {name: float(value) for name, value in logger.step_values.items()}

    assert run(2, rank) == [([3, 1, 1], {"of 0": 0.0, "of 1": 1.0})] * 2


def test_what_a_rank_sends_does_not_grow_with_the_world() -> None:
    def rank(comm):
        recorder = RecordingCommunicator(comm)
        logger = LogBook("validate", recorder, nn.Module())
        for index in range(2000):  # more than rides along
            logged(logger, f"x{index}", float(comm.rank), torch.zeros(2))
        values = epoch(logger)
        return values["x7"], [(call.op, call.nbytes) for call in recorder.calls]

    (two, *_), (four, *_) = run(2, rank), run(4, rank)
    assert (two[0], four[0]) == (0.5, 1.5)
    assert two[1] == four[1]
    assert [op for op, _ in two[1]] == ["all_gather", "all_reduce sum"]


def test_of_several_names_that_are_logged_apart_every_rank_tells_the_same_one() -> None:
    def rank(comm):
        logger = LogBook("validate", comm, nn.Module())
        for name in ("b", "a") if comm.rank else ("a", "b"):
            logged(logger, name, 1.0, torch.zeros(1), reduce_fx="sum" if comm.rank else "mean")
        return logger.close()

    texts = {str(outcome.error) for outcome in outcomes(2, rank)}
    assert len(texts) == 1
    assert "ranks log 'a' in two ways" in texts.pop()
