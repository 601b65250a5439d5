"""What updating sets and is no state: a rank without data has it while the state of all ranks is in, and no longer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics as tm

from distmetrics import StateError, explain, sync_and_compute, synced
from distmetrics.comm.record import RecordingCommunicator
from distmetrics.state.spec import Learned
from distmetrics.testing import outcomes, run
from tests.backends import same_error
from tests.state import learned_samples as own
from tests.state.learned_samples import SAMPLES
from tests.state.samples import flat

pytestmark = [
    pytest.mark.filterwarnings("ignore:Metric `.*` will save all"),
    pytest.mark.filterwarnings("ignore:It was not possible to retrieve the parameter `num_layers`"),
]
every_sample = pytest.mark.parametrize("name", SAMPLES)
HAVE = {  # which ranks have data
    "first": lambda rank, size: rank == 0,
    "not the first": lambda rank, size: rank != 0,
    "not the last": lambda rank, size: rank != size - 1,
    "middle one": lambda rank, size: rank == size // 2,
    "all": lambda rank, size: True,
}


def filled(name: str, ranks: list[int]) -> Any:
    metric = SAMPLES[name].make()
    for rank in ranks:
        SAMPLES[name].feed(metric, torch.Generator().manual_seed(rank))
    return metric


def attributes(metric: torch.nn.Module) -> list[dict[str, Any]]:
    """All that the modules hold, the tensors' bits among it."""
    hidden = "_state_is_copy"  # a collection's flag that looking at its members changes
    return [{name: _frozen(x) for name, x in vars(module).items() if name != hidden} for module in metric.modules()]


def _frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.detach().numpy().tobytes()
    if isinstance(value, list):
        return [_frozen(item) for item in value]
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return value


def on_rank(comm: Any, name: str, have: str) -> Any:
    metric = filled(name, [comm.rank] if HAVE[have](comm.rank, comm.world_size) else [])
    before = attributes(metric)
    record = RecordingCommunicator(comm)
    values = [flat(sync_and_compute(metric, comm=record)), flat(sync_and_compute(metric, comm=comm))]
    assert all(map(torch.equal, *values))
    assert attributes(metric) == before
    return values[0], len(record.calls)


def check(name: str, have: str, ranks: list[Any]) -> None:
    wanted = flat(filled(name, [r for r in range(len(ranks)) if HAVE[have](r, len(ranks))]).compute())
    for values, _ in ranks:
        for got, value in zip(values, wanted, strict=True):
            assert got.dtype == value.dtype
            torch.testing.assert_close(got, value, rtol=1e-5, atol=1e-6, equal_nan=True)
        assert all(map(torch.equal, values, ranks[0][0]))
    known = have == "all" and SAMPLES[name].large  # what all ranks have, and have alike, is not broadcast
    assert {count for _, count in ranks} == {SAMPLES[name].rounds - known}


@every_sample
@pytest.mark.parametrize("have", HAVE)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_without_data_compute_what_one_process_does(name: str, have: str, world_size: int) -> None:
    """The same bits on every rank; all attributes of every module are as before, or absent as before."""
    check(name, have, run(world_size, on_rank, name, have))


@pytest.mark.gloo
@pytest.mark.parametrize(("have", "world_size"), [("first", 2), ("middle one", 3)])
def test_real_processes_give_the_same(have: str, world_size: int) -> None:
    ranks = run(world_size, all_on_rank, have, backend="gloo")
    for name in SAMPLES:
        check(name, have, [rank[name] for rank in ranks])


def all_on_rank(comm: Any, have: str) -> dict[str, Any]:
    return {name: on_rank(comm, name, have) for name in SAMPLES}


@every_sample
def test_one_process_alone(name: str) -> None:
    metric = filled(name, [0, 1])
    before = attributes(metric)
    assert all(map(torch.equal, flat(sync_and_compute(metric)), flat(filled(name, [0, 1]).compute())))
    assert attributes(metric) == before


@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample.names])
def test_the_plan_tells(name: str) -> None:
    """What is taken, from whom, and how it travels; only what some rank lacks."""

    def work(comm: Any) -> tuple[str, int, int]:
        metric = filled(name, [comm.rank] if comm.rank == 1 else [])
        record = RecordingCommunicator(comm)
        with synced(metric, comm=record) as plan:
            assert plan is not None
            return plan.describe(), plan.rounds, len(record.calls)

    (text, rounds, calls), other = run(2, work)
    assert other == (text, rounds, calls)
    assert rounds == calls
    if name != "RMSE-SW":  # a sum like others
        for path in SAMPLES[name].names:
            assert f"  {path} of rank 1: " in text


def test_the_sum_over_all_images_is_that_of_all_ranks() -> None:
    """``rmse_map`` adds up in torchmetrics, and is no state there."""

    def work(comm: Any) -> Any:
        metric = filled("RMSE-SW", [comm.rank] if comm.rank else [])
        with synced(metric, comm=comm):
            whole = metric.rmse_map
        assert ("rmse_map" in vars(metric)) == (comm.rank > 0)
        return whole

    for whole in run(3, work):
        torch.testing.assert_close(whole, filled("RMSE-SW", [1, 2]).rmse_map)


def test_all_ranks_take_the_last_ones() -> None:
    """Each update overwrites it, so one process that saw the data in the ranks' order has the last rank's."""

    def work(comm: Any) -> int:
        metric = own.Own()
        if comm.rank < 2:
            metric.update(torch.ones(2, 3 + comm.rank))
        with synced(metric, comm=comm):
            return metric.width

    assert run(3, work) == [4, 4, 4]


def test_attributes_from_before_a_reset_do_not_count() -> None:
    def work(comm: Any) -> int:
        metric = own.Own()
        metric.update(torch.ones(2, 3 + comm.rank))
        if comm.rank == 1:
            metric.reset()
        with synced(metric, comm=comm):
            width = metric.width
        assert metric.width == 3 + comm.rank
        return width

    assert run(2, work) == [3, 3]


@pytest.mark.parametrize("world_size", [1, 2])
def test_it_is_absent_again_when_computing_fails(world_size: int) -> None:
    def work(comm: Any) -> bool:
        metric = own.Raises()
        if comm.rank == 0:
            metric.update(torch.ones(2, 3))
        before = attributes(metric)
        with pytest.raises(ZeroDivisionError, match="3"):
            sync_and_compute(metric, comm=comm)
        assert attributes(metric) == before
        return "width" in vars(metric)

    assert run(world_size, work) == [True, False][:world_size]


def test_what_is_set_inside_is_gone_afterwards() -> None:
    metric = own.Own()
    with synced(metric):
        metric.update(torch.ones(2, 3))
        assert metric.width == 3
    assert "width" not in vars(metric)


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_no_data_anywhere() -> None:
    """Nobody has it: the metric's own error, on every rank."""
    for outcome in outcomes(2, lambda comm: sync_and_compute(own.Own(), comm=comm)):
        assert isinstance(outcome.error, AttributeError)


@pytest.mark.parametrize(
    ("make", "why"),
    [(own.Adds, "m.samples is no state, and its values on ranks 0-1 cannot be combined: update() adds to it"),
     (own.Derives, "m.most is no state, and its values on ranks 0-1 cannot be combined: update() derives it")],
)  # fmt: skip
def test_what_accumulates_is_refused(make: Any, why: str) -> None:
    """A value of one rank would be wrong without a word; every rank hears what to do."""

    def work(comm: Any) -> Any:
        metric = make()
        if comm.rank < 2:
            metric.update(torch.ones(2 + comm.rank, 3))
        return sync_and_compute({"m": metric}, comm=comm, name="val")

    error = same_error(outcomes(3, work), StateError)
    first, *_ = str(error).splitlines()
    assert first.startswith(f'sync of metrics "val": the attribute {why}')
    assert "lacks it" in str(error)
    assert 'self.add_state("' in str(error)
    assert tuple(error.peers) == (0, 1)


@pytest.mark.parametrize("make", [own.Adds, own.Derives])
def test_what_accumulates_on_one_rank_alone_is_that_of_all(make: Any) -> None:
    def work(comm: Any) -> float:
        metric = make()
        if comm.rank == 1:
            metric.update(torch.ones(2, 3))
        return float(sync_and_compute(metric, comm=comm))

    assert run(3, work) == [3.0] * 3


def test_what_is_derived_alike_is_no_error() -> None:
    def work(comm: Any) -> float:
        metric = own.Derives()
        if comm.rank:
            metric.update(torch.ones(2, 3))
        return float(sync_and_compute(metric, comm=comm))

    assert run(3, work) == [6.0] * 3


@pytest.mark.parametrize(
    ("make", "why"), [(own.KeepsModule, "it is a torch.nn.Module"), (own.KeepsFunction, "<lambda>")]
)
def test_what_cannot_be_sent(make: Any, why: str) -> None:
    """No error where every rank has its own; where one lacks it, every rank is told."""

    def work(comm: Any, lacking: int) -> Any:
        metric = make()
        if comm.rank != lacking:
            metric.update(torch.ones(1, 3))
        return float(sync_and_compute(metric, comm=comm))

    run(2, work, -1)
    error = same_error(outcomes(3, work, 2), StateError)
    assert "is no state, and cannot be sent to rank 2: " in str(error)
    assert why in str(error)


def test_running_windows_go_on() -> None:
    """Their cursor adds up, and is known to be no data: no error."""

    def work(comm: Any) -> float:
        metric = tm.aggregation.RunningSum(window=2)
        for value in range(comm.rank):
            metric.update(1.0 + value)
        return float(sync_and_compute(metric, comm=comm))

    assert run(3, work) == [1.0 + 1.0 + 2.0] * 3


def test_metrics_without_such_attributes_have_none() -> None:
    """The states are not among them, whatever their names are made of."""
    metrics = [tm.MeanMetric(), tm.classification.BinaryAUROC(), own.kid(), tm.R2Score(), tm.CatMetric()]
    for metric in metrics:
        with synced(metric):
            pass
        specs = tm_specs(metric)
        assert (specs.learned, specs.loose) == ((), False)
    assert tm_specs(own.Own()).learned == (Learned("width", "last"),)


def tm_specs(metric: Any) -> Any:
    from distmetrics.state.adapters.torchmetrics import ADAPTER

    return ADAPTER.specs(metric)


def test_explain_before_and_after_data() -> None:
    for name in SAMPLES:
        assert explain(SAMPLES[name].make(), world_size=4).cost.rounds >= 1
        assert explain(filled(name, [0]), world_size=4).cost.rounds >= 1
