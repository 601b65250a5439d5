"""What updating sets and is no state: a rank without data has it while the state of all ranks is in, and no longer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics as tm
from torch import Tensor, nn

from distmetrics import StateError, explain, sync_and_compute, synced
from distmetrics.collectives.header import Header
from distmetrics.comm.communicator import Communicator
from distmetrics.metrics.attributes import agreed, described
from distmetrics.metrics.metric_set import digest_of
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import same_error
from tests.metrics import attribute_samples as own
from tests.metrics.attribute_samples import SAMPLES
from tests.metrics.samples import flat

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
    assert {count for _, count in ranks} == {1 if have == "all" else SAMPLES[name].rounds}


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


@pytest.mark.parametrize("name", ["own", "collection"])
def test_the_plan_tells(name: str) -> None:
    """A round more, where some rank lacks what others have."""

    def work(comm: Any) -> tuple[str, int, int]:
        metric = filled(name, [comm.rank] if comm.rank == 1 else [])
        record = RecordingCommunicator(comm)
        with synced(metric, comm=record) as plan:
            assert plan is not None
            return plan.describe(), plan.cost.rounds, len(record.calls)

    (text, rounds, calls), other = run(2, work)
    assert other == (text, rounds, calls)
    assert rounds == calls == 2


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


@pytest.mark.parametrize(("make", "name"), [(own.Adds, "samples"), (own.Derives, "most"), (own.Own, "width")])
def test_what_differs_is_refused(make: Any, name: str) -> None:
    """A value of one rank would be wrong without a word; every rank hears what to do."""

    def work(comm: Any) -> Any:
        metric = make()
        if comm.rank < 2:
            metric.update(torch.ones(2 + comm.rank, 3 + comm.rank))
        return sync_and_compute({"m": metric}, comm=comm, name="val")

    error = same_error(outcomes(3, work), StateError)
    first, *_ = str(error).splitlines()
    why = "is no state, differs between ranks with data, and is missing on ranks without data"
    assert first == f'sync of metrics "val": the attribute m.{name} {why}'
    assert error.per_rank[2] == "no update"
    assert error.per_rank[1] == f"{name} = {4 if make is own.Own else 3}"
    assert f'self.add_state("{name}"' in error.do
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


@pytest.mark.parametrize("make", [own.KeepsModule, own.KeepsFunction])
def test_what_cannot_be_sent(make: Any) -> None:
    """No error where every rank has its own; where one lacks it, every rank is told."""

    def work(comm: Any, lacking: int) -> Any:
        metric = make()
        if comm.rank != lacking:
            metric.update(torch.ones(1, 3))
        return float(sync_and_compute(metric, comm=comm))

    run(2, work, -1)
    error = same_error(outcomes(3, work, 2), StateError)
    assert "is no state, cannot be sent, and is missing on ranks without data" in str(error)
    assert " = an object that is no data" in str(error)


class SeenShapes(tm.Metric):
    """Keeps what it has seen in a dict, a shape and a large tensor."""

    def __init__(self, large: int = 0) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), "sum")
        self.names: dict[str, int] = {}
        self.shape = torch.Size()
        self.large = torch.zeros(large)

    def update(self, x: Tensor) -> None:
        self.total += x.sum()
        self.names = {"rows": len(x)}
        self.shape = x.shape
        self.large = self.large + 1

    def compute(self) -> Tensor:
        return self.total / self.names["rows"] / self.shape.numel() + self.large.sum()


def test_containers_and_shapes_are_borrowed() -> None:
    def sync(comm: Communicator) -> Any:
        metric = SeenShapes()
        if comm.rank:
            metric.update(torch.ones(2, 3))
        return sync_and_compute(metric, comm=comm)

    assert run(2, sync) == [torch.tensor(0.5)] * 2


@pytest.mark.parametrize(
    "value",
    [
        np.arange(4)[::-1],
        np.arange(4, dtype=">i4"),
        np.float64(2.5),
        np.broadcast_to(1.0, (3, 2)),
        np.arange(20_000)[::-1],
    ],
    ids=["reversed", "big-endian", "scalar", "read-only", "large"],
)
def test_arrays_of_any_kind_are_told_apart(value: Any) -> None:
    """Every sync describes them: one that torch cannot hold must not end it on one rank."""
    assert digest_of({"x": value}) == digest_of({"x": value.copy()}) != digest_of({"x": value + 1})


def test_a_large_tensor_that_differs_is_refused() -> None:
    """A rank without data would compute with the one that it was made with."""

    def sync(comm: Communicator) -> Any:
        metric = SeenShapes(20_000)
        if comm.rank:
            metric.update(torch.ones(2, 3))
        return sync_and_compute(metric, comm=comm)

    with pytest.raises(StateError, match="large is no state, cannot be sent, and is missing"):
        run(2, sync)


def test_running_windows_go_on() -> None:
    """Where ranks with data have seen as much."""

    def work(comm: Any) -> float:
        metric = tm.aggregation.RunningSum(window=2)
        if comm.rank:
            metric.update(1.0 + comm.rank)
        return float(sync_and_compute(metric, comm=comm))

    assert run(3, work) == [2.0 + 3.0] * 3


def test_most_metrics_have_none() -> None:
    """What updating changes are states, whatever their names are made of, and the base class's bookkeeping."""
    metrics: list[Any] = [tm.MeanMetric(), tm.classification.BinaryAUROC(), own.kid(), tm.R2Score(), tm.CatMetric()]
    batches: list[Any] = [(1.0,), (torch.rand(2), torch.tensor([0, 1])), None, (torch.rand(2), torch.rand(2)), (1.0,)]
    for metric, batch in zip(metrics, batches, strict=True):
        before = digest(metric)
        if batch is None:
            own.real_and_fake(metric, torch.Generator())
        else:
            metric.update(*batch)
        metric.compute()
        assert digest(metric) == before


def digest(metric: Any) -> str:
    from distmetrics.metrics.adapters.torchmetrics import ADAPTER

    return digest_of(ADAPTER.attributes(metric))


def chosen(*per_rank: Any, updated: tuple[int, ...]) -> Any:
    """What is borrowed of the attribute x; None stands for a rank that has none."""
    columns = [{} if value is ABSENT else {"x": described(value)} for value in per_rank]
    return agreed("m", columns, updated, Header("sync of metrics"), 0)


ABSENT = object()
SOME = torch.arange(3.0)


@pytest.mark.parametrize(
    ("per_rank", "updated", "value"),
    [
        ((3, 3, ABSENT), (0, 1), 3),
        ((3, 3, 0), (0, 1), 3),
        ((ABSENT, torch.float16), (1,), torch.float16),
        (((1, [2.0, "a"]), None), (0,), (1, [2.0, "a"])),
        ((torch.Size([2]), torch.Size([3])), (0,), torch.Size([2])),
        ((SOME, SOME.clone(), ABSENT), (0, 1), SOME),
        ((float("nan"), float("nan"), 1.0), (0, 1), float("nan")),
    ],
)
def test_what_ranks_with_data_have_alike_is_borrowed(per_rank: Any, updated: tuple[int, ...], value: Any) -> None:
    (found,) = chosen(*per_rank, updated=updated).values()
    assert repr(found) == repr(value)
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("per_rank", "updated"),
    [((3, 3), (0,)), ((3, 3, 3), (0, 1)), ((print, str.upper), (0,)), ((ABSENT, 3), (0,))],
)
def test_what_a_rank_without_data_has_is_left(per_rank: Any, updated: tuple[int, ...]) -> None:
    assert chosen(*per_rank, updated=updated) == {}


@pytest.mark.parametrize(
    ("per_rank", "updated"),
    [
        ((1, 1.0, 0), (0, 1)),
        ((1, ABSENT, ABSENT), (0, 1)),
        ((SOME, SOME + 1, SOME), (0, 1)),
        ((print, ABSENT), (0,)),
        ((print, None), (0,)),
        ((torch.zeros(20_000), ABSENT), (0,)),
    ],
)
def test_what_nobody_can_borrow_is_refused(per_rank: Any, updated: tuple[int, ...]) -> None:
    with pytest.raises(StateError, match=r"the attribute m\.x is no state, "):
        chosen(*per_rank, updated=updated)


def test_explain_before_and_after_data() -> None:
    for name in SAMPLES:
        assert explain(SAMPLES[name].make(), world_size=4).cost.rounds >= 1
        assert explain(filled(name, [0]), world_size=4).cost.rounds >= 1


class Last(tm.Metric):
    """Keeps a column of its last input, and what is computed of it."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, x: Tensor) -> None:
        self.total = self.total + x.sum()
        self.last = x[:, 1]
        if x.shape[1] > 2:
            self.scale = nn.Parameter(torch.ones(1))

    def compute(self) -> Tensor:
        return self.total


def test_an_attribute_of_one_element_with_a_stride_is_compared() -> None:
    """As a column of a batch of one sample is, which torch takes for contiguous."""

    def work(comm: Communicator) -> float:
        metric = Last()
        metric.update(torch.ones(1, 2))
        return float(sync_and_compute(metric, comm=comm))

    assert run(2, work) == [4.0, 4.0]


def test_a_parameter_that_an_update_sets_cannot_be_borrowed() -> None:
    def work(comm: Communicator) -> Any:
        metric = Last()
        if comm.rank:
            metric.update(torch.ones(1, 3))
        return sync_and_compute(metric, comm=comm)

    assert "the attribute scale" in str(same_error(outcomes(2, work), StateError))
