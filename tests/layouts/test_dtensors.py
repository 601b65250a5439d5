"""States and inputs that are DTensors: what one process gives, or an error on every rank."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torchmetrics import Accuracy, CatMetric, MaxMetric, MeanMetric, Metric, SumMetric
from torchmetrics.classification import BinaryAUROC

import distmetrics as dm
from distmetrics.collectives.buckets import is_dtensor
from distmetrics.collectives.dtensor import part_of, rows_of, term_of
from distmetrics.comm.communicator import SingleCommunicator
from distmetrics.testing import run

ROWS, CLASSES = 8, 4
GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.rand(ROWS, CLASSES, generator=GENERATOR)
LABELS = torch.randint(0, CLASSES, (ROWS,), generator=GENERATOR)


class MeanShare(Metric):
    """The entropy of the mean score of each class: its state has one number a class."""

    total: torch.Tensor
    highest: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(CLASSES), dist_reduce_fx="sum")
        self.add_state("highest", torch.zeros(CLASSES), dist_reduce_fx="max")

    def update(self, scores: torch.Tensor) -> None:
        self.total = scores.sum(0)  # no sum of a plain tensor and a DTensor: one batch is enough
        self.highest = scores.amax(0)

    def compute(self) -> torch.Tensor:
        share = self.total / self.total.sum()
        return -(share * share.log()).sum() + self.highest.sum()


def on_rank(comm: Any) -> dict[str, Any]:
    """Return what each call gives, over all ranks and over a layout."""
    warnings.simplefilter("ignore")  # torch warns of tensors that it takes for copies
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    over = dm.layout(mesh, dp="shard", tp="same")
    shard, half = comm.rank // 2, comm.rank % 2
    mine = slice(4 * shard, 4 * shard + 4)
    rows = DTensor.from_local(SCORES[mine], mesh, [Shard(0), Replicate()])
    labels = DTensor.from_local(LABELS[mine], mesh, [Shard(0), Replicate()])
    columns = SCORES[mine, 2 * half : 2 * half + 2]
    pieces = DTensor.from_local(columns, mesh, [Shard(0), Shard(1)])
    along_tp = DTensor.from_local(columns, mesh["tp"], [Shard(1)])
    loss = DTensor.from_local(torch.tensor(1.0 + shard), mesh["tp"], [Replicate()])
    whole = DTensor.from_local(SCORES, mesh, [Replicate(), Replicate()])
    values: dict[str, Any] = {}

    def note(name: str, make: Callable[[], Any]) -> None:
        try:
            values[name] = make()
        except dm.DistmetricsError as error:
            values[name] = error

    def of(metric: Any, *args: Any) -> Any:
        metric.update(*args)
        return metric

    everywhere = {"flat": dm.current(), "layout": over}
    for name, ranks in everywhere.items():
        accuracy = Accuracy("multiclass", num_classes=CLASSES, validate_args=False)
        metrics = {
            "auroc": of(BinaryAUROC(validate_args=False), rows[:, 0], (labels > 1).long()),
            "rows": of(CatMetric(nan_strategy="disable"), rows),
            "max": of(MaxMetric(nan_strategy="disable"), rows),
        }
        accuracy.update(rows.argmax(1), labels)
        note(f"{name} accuracy", lambda r=ranks, m=accuracy: dm.sync_and_compute(m, comm=r))
        note(f"{name} metrics", lambda ranks=ranks, m=metrics: dm.sync_and_compute(m, comm=ranks))
        note(f"{name} back", lambda m=metrics: all(map(is_dtensor, m["rows"].value)))
        note(f"{name} mean", lambda ranks=ranks: dm.mean(rows.mean(), weight=2, comm=ranks))
        note(f"{name} sum", lambda ranks=ranks: dm.all_reduce(rows.sum(0), comm=ranks))
        note(f"{name} max", lambda ranks=ranks: dm.all_reduce(rows.amax(0), "max", comm=ranks))
        note(f"{name} join", lambda ranks=ranks: dm.all_gather_cat(rows, comm=ranks))
        note(f"{name} loss", lambda ranks=ranks: dm.mean(loss, weight=1 + shard, comm=ranks))
        # refused
        weight = 1 + shard
        note(f"{name} weights", lambda w=weight, r=ranks: dm.mean(rows.mean(), weight=w, comm=r))
        note(f"{name} stack", lambda ranks=ranks: dm.all_gather(rows, comm=ranks))
        share = of(MeanShare(), pieces)
        note(f"{name} pieces", lambda ranks=ranks, m=share: dm.sync_and_compute(m, comm=ranks))
        copies = of(MeanShare(), whole)
        note(f"{name} copies", lambda ranks=ranks, m=copies: dm.sync_and_compute(m, comm=ranks))
        if name == "flat":
            per_shard = of(MeanShare(), along_tp)
            note("pieces along tp", lambda m=per_shard: dm.sync_and_compute(m))
            note("held pieces", lambda m=per_shard: held(m))
            some = of(MeanShare(), pieces) if shard else MeanShare()
            note("some without data", lambda m=some: dm.sync_and_compute(m))
            plain = SCORES.sum() if comm.rank == 3 else rows.sum()
            note("one plain", lambda x=plain: dm.all_reduce(x))
            mixed = of(MeanShare(), whole)
            mixed.highest = torch.ones(CLASSES)
            note("mixed", lambda m=mixed: dm.sync_and_compute(m))
            note("part of the mesh", lambda: dm.sync_and_compute(of(MeanShare(), pieces), comm=over))
    total = rows.sum()
    assert any(placement.is_partial() for placement in total.placements)
    average = MeanMetric()
    try:
        average.update(total)
    except AssertionError as error:
        values["in place"] = str(error), float(average.mean_value), float(average.weight)
    average.reset()
    average.update(total.full_tensor())
    note("of whole tensors", lambda: [dm.sync_and_compute(average), dm.all_reduce(total)])
    values["after"] = dm.all_reduce(1)
    return values


def held(metric: Any) -> Any:
    """Return what a metric holds while the state of all ranks is in."""
    with dm.synced(metric):
        return [str(metric.total.placements), metric.total.to_local().shape]


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    return run(4, on_rank, backend="gloo")


def alone() -> dict[str, Any]:
    """Return what one process that has all rows gets."""
    accuracy = Accuracy("multiclass", num_classes=CLASSES)
    accuracy.update(SCORES.argmax(1), LABELS)
    auroc, share = BinaryAUROC(), MeanShare()
    auroc.update(SCORES[:, 0], (LABELS > 1).long())
    share.update(SCORES)
    return {
        "metrics": {
            "auroc": auroc.compute(),
            "rows": SCORES,
            "max": SCORES.max(),
        },
        "accuracy": accuracy.compute(),
        "back": True,
        "mean": SCORES.mean(),
        "sum": SCORES.sum(0),
        "max": SCORES.amax(0),
        "join": SCORES,
        "loss": torch.tensor(5 / 3),
        "pieces": share.compute(),
    }


@pytest.mark.parametrize("ranks", ["flat", "layout"])
@pytest.mark.parametrize("name", ["metrics", "back", "mean", "sum", "max", "join", "loss"])
def test_what_one_process_gives(results: list[dict[str, Any]], ranks: str, name: str) -> None:
    for values in results:
        got = values[f"{ranks} {name}"]
        if isinstance(got, Exception):
            raise got
        torch.testing.assert_close(got, alone()[name], check_dtype=False)


@pytest.mark.parametrize("name", ["flat pieces", "flat copies", "pieces along tp"])
def test_states_in_pieces_and_copies(results: list[dict[str, Any]], name: str) -> None:
    for values in results:
        if isinstance(values[name], Exception):
            raise values[name]
        torch.testing.assert_close(values[name], alone()["pieces"])


def test_a_state_that_torch_has_reduced(results: list[dict[str, Any]]) -> None:
    """Over all ranks it counts once; a layout says that its shards hold other samples."""
    for values in results:
        torch.testing.assert_close(values["flat accuracy"], alone()["accuracy"])
        with pytest.raises(dm.LayoutError, match=r"the axis dp, .* tn is a DTensor of Replicate"):
            raise values["layout accuracy"]


def test_a_state_to_which_torch_adds_in_place(results: list[dict[str, Any]]) -> None:
    """Pinned, since the docs say so: torch ends the update without a word, half-way; what helps instead."""
    for values in results:
        assert values["in place"] == ("", pytest.approx(float(SCORES.sum())), 0.0)
        torch.testing.assert_close(values["of whole tensors"], [SCORES.sum()] * 2)


def test_pieces_stay_pieces(results: list[dict[str, Any]]) -> None:
    for values in results:
        assert values["held pieces"] == ["(Shard(dim=0),)", torch.Size([2])]


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("flat weights", dm.MismatchError, "ranks 0-3 hold"),
        ("layout weights", dm.MismatchError, r"ranks \d, \d hold"),
        ("flat stack", dm.InputTypeError, r"a DTensor of \(Shard\(dim=0\), Replicate"),
        ("layout pieces", dm.LayoutError, "the axis tp, said to hold the same samples, total is"),
        ("layout copies", dm.LayoutError, "the axis dp, said to hold other samples, total is"),
        ("some without data", dm.MismatchError, "hold the DTensor total of MeanShare together"),
        ("one plain", dm.MismatchError, "rank 3 sends float32"),
        ("mixed", dm.StateError, "highest is no DTensor, and another of its metric is"),
        ("part of the mesh", dm.LayoutError, "the axis tp"),
    ],
)
def test_refused_on_every_rank(results: list[dict[str, Any]], name: str, kind: type[Exception], text: str) -> None:
    for values in results:
        with pytest.raises(kind, match=text):
            raise values[name]
        assert values["after"] == 4


class OnPaper(torch.Tensor):
    """Stands for a DTensor where there is no process group."""

    device_mesh: Any
    placements: Any

    def full_tensor(self) -> None:
        raise AssertionError("nothing communicates")

    def to_local(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def on_paper(local: Any, ranks: Any, me: int, *placements: Any) -> Any:
    x = torch.as_tensor(local).as_subclass(OnPaper)
    names = ("dp", "tp")[: torch.tensor(ranks).ndim]
    x.device_mesh = SimpleNamespace(
        mesh=torch.tensor(ranks), mesh_dim_names=names, get_rank=lambda: me, ndim=len(names)
    )
    x.placements = placements
    return x


class CommOnPaper(SingleCommunicator):
    """One rank's end of a world of some ranks of a job, that never communicates."""

    members: Any = ()


def comm_of(ranks: list[int], me: int) -> CommOnPaper:
    comm = CommOnPaper()
    comm.world_size, comm.rank, comm.members = len(ranks), ranks.index(me), ranks
    return comm


MESH = [[0, 1], [2, 3]]


def test_of_copies_one_counts() -> None:
    for placements, counting in [
        ((Replicate(), Replicate()), [0]),
        ((Shard(0), Replicate()), [0, 2]),
        ((Replicate(), Partial()), [0, 1]),
        ((Partial(), Shard(0)), [0, 1, 2, 3]),
    ]:
        parts = [part_of(on_paper([1.0], MESH, me, *placements), comm_of([0, 1, 2, 3], me), "x") for me in range(4)]
        assert [me for me in range(4) if parts[me].counts] == counting
        assert [part.holders for part in parts] == [(0, 1, 2, 3)] * 4


def test_of_ranks_that_are_not_asked() -> None:
    """Copies elsewhere are of no matter; terms and pieces are missed."""
    part = part_of(on_paper([1.0], MESH, 3, Shard(0), Replicate()), comm_of([1, 3], 3), "x")
    assert part.counts
    assert part.holders == (0, 1)
    for placement in (Partial(), Shard(0)):
        with pytest.raises(dm.InputTypeError, match=r"x .* of which ranks \[2\], which are not"):
            part_of(on_paper([1.0], MESH, 3, Shard(0), placement), comm_of([1, 3], 3), "x")


def test_terms() -> None:
    def term(placement: Any, op: str, me: int = 1) -> list[float]:
        part = part_of(on_paper([3.0], [0, 1], me, placement), comm_of([0, 1], me), "x")
        return term_of(part, "x", op).tolist()

    assert term(Partial(), "sum") == [3.0]
    assert term(Partial("avg"), "sum") == [1.5]
    assert term(Replicate(), "sum") == [0.0]
    assert term(Replicate(), "sum", me=0) == [3.0]
    assert term(Replicate(), "prod") == [1.0]
    assert term(Replicate(), "max") == term(Partial("max"), "max") == [3.0]
    for placement, op in [(Partial(), "max"), (Partial("max"), "sum"), (Shard(0), "sum")]:
        with pytest.raises(dm.InputTypeError, match=f"which {op} cannot reduce"):
            term(placement, op)


class _NormPartial(Partial):
    """Stands for the placement of the norms of torch, which is private."""


@pytest.mark.parametrize("op", ["sum", "min"])  # of mean, and of all_reduce
@pytest.mark.parametrize("placement", [Partial("max"), _NormPartial(), Shard(0)])
def test_the_advice_for_a_part_leads_somewhere(placement: Any, op: str) -> None:
    """The part itself, ``x.to_local()``, would be counted for the whole."""
    x = on_paper([3.0], [0, 1], 0, placement)
    with pytest.raises(dm.InputTypeError) as caught:
        term_of(part_of(x, comm_of([0, 1], 0), "x"), "x", op)
    assert "x.full_tensor()" in caught.value.do
    assert "distmetrics.grad_norm(parameters)" in caught.value.do
    assert "to_local" not in caught.value.do


def test_a_log_takes_a_tensor_that_each_rank_has_whole() -> None:
    log = dm.Log()
    for name, placements in {"a": [Replicate(), Replicate()], "b": [Partial()]}.items():
        mesh = [[0, 1], [2, 3]] if name == "a" else [0]
        log.max(name, on_paper(4.0, mesh, 0, *placements))
        log.sum({f"array {name}": on_paper([1.0, 2.0], mesh, 0, *placements)})
        log.mean(f"mean {name}", 5.0, weight=on_paper(2.0, mesh, 0, *placements))
    arrays = {"array a": [1.0, 2.0], "array b": [1.0, 2.0]}
    assert log.flush() == {"a": 4.0, "b": 4.0, "mean a": 5.0, "mean b": 5.0, **arrays}


@pytest.mark.parametrize("placement", [Partial(), _NormPartial(), Shard(0)])
def test_a_log_refuses_what_each_rank_has_a_part_of(placement: Any) -> None:
    log = dm.Log()
    log.max("norm", on_paper(4.0, [0, 1], 0, placement))
    with pytest.raises(dm.InputError, match=r"the value of 'norm' is a DTensor of .* this rank has a part") as caught:
        log.flush()
    assert "x.full_tensor()" in caught.value.do
    assert "to_local" not in caught.value.do
    assert log.flush() == {}


def test_rows() -> None:
    def rows(placement: Any, me: int) -> int:
        part = part_of(on_paper([[3.0]], [0, 1], me, placement), comm_of([0, 1], me), "x")
        return len(rows_of(part, "x"))

    assert [rows(Shard(0), 0), rows(Shard(0), 1)] == [1, 1]
    assert [rows(Replicate(), 0), rows(Replicate(), 1)] == [1, 0]
    with pytest.raises(dm.InputTypeError, match="only pieces of dimension 0"):
        rows(Shard(1), 0)


def test_sums_of_plain_tensors_are_as_before() -> None:
    def work(comm: Any) -> Any:
        metric = SumMetric()
        metric.update(comm.rank)
        return dm.sync_and_compute(metric, comm=comm)

    assert run(3, work) == [3.0, 3.0, 3.0]
