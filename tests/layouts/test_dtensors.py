"""States and inputs that are DTensors: what one process gives, or an error on every rank."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torchmetrics import Accuracy, CatMetric, MaxMetric, Metric
from torchmetrics.classification import BinaryAUROC

import distmetrics as dm
from distmetrics.collectives.buckets import is_dtensor
from distmetrics.collectives.dtensor import part_of, rows_of, term_of
from distmetrics.comm.communicator import SingleCommunicator
from tests.layouts.processes import on_four_processes

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


def of(metric: Any, *args: Any) -> Any:
    metric.update(*args)
    return metric


def on_rank(comm: Any) -> dict[str, Any]:
    """Return what each sync gives, over all ranks and over a layout."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    over = dm.layout(mesh, dp="shard", tp="same")
    shard, half = comm.rank // 2, comm.rank % 2
    mine = slice(4 * shard, 4 * shard + 4)
    rows = DTensor.from_local(SCORES[mine], mesh, [Shard(0), Replicate()])
    labels = DTensor.from_local(LABELS[mine], mesh, [Shard(0), Replicate()])
    columns = SCORES[mine, 2 * half : 2 * half + 2]
    pieces = DTensor.from_local(columns, mesh, [Shard(0), Shard(1)])
    loss = DTensor.from_local(torch.tensor(1.0 + shard), mesh["tp"], [Replicate()])
    values: dict[str, Any] = {}

    def note(name: str, make: Callable[[], Any]) -> None:
        try:
            values[name] = make()
        except dm.DistmetricsError as error:
            values[name] = error

    for name, ranks in {"flat": dm.current(), "layout": over}.items():
        metrics = {
            "auroc": of(BinaryAUROC(validate_args=False), rows[:, 0], (labels > 1).long()),
            "rows": of(CatMetric(nan_strategy="disable"), rows),
            "max": of(MaxMetric(nan_strategy="disable"), rows),
        }
        accuracy = of(Accuracy("multiclass", num_classes=CLASSES, validate_args=False), rows.argmax(1), labels)
        note(f"{name} accuracy", lambda r=ranks, m=accuracy: dm.sync_and_compute(m, comm=r))
        note(f"{name} metrics", lambda ranks=ranks, m=metrics: dm.sync_and_compute(m, comm=ranks))
        assert all(map(is_dtensor, metrics["rows"].value))  # it is back
        note(f"{name} loss", lambda ranks=ranks: dm.mean(loss, weight=1 + shard, comm=ranks))
    along_tp = of(MeanShare(), DTensor.from_local(columns, mesh["tp"], [Shard(1)]))
    note("pieces along tp", lambda: dm.sync_and_compute(along_tp))
    with dm.synced(along_tp):  # pieces stay pieces
        assert str(along_tp.total.placements) == "(Shard(dim=0),)"
        assert along_tp.total.to_local().shape == (2,)
    some = of(MeanShare(), pieces) if shard else MeanShare()
    note("some without data", lambda: dm.sync_and_compute(some))
    mixed = of(MeanShare(), DTensor.from_local(SCORES, mesh, [Replicate(), Replicate()]))
    mixed.highest = torch.ones(CLASSES)
    note("mixed", lambda: dm.sync_and_compute(mixed))
    values["after"] = dm.all_reduce(1)
    return values


@on_four_processes
def test_metrics_give_what_one_process_gives_or_an_error_on_every_rank(four_processes: list[Any]) -> None:
    """A state that torch has reduced counts once over all ranks; a layout says that its shards hold other samples."""
    auroc = of(BinaryAUROC(), SCORES[:, 0], (LABELS > 1).long()).compute()
    accuracy = of(Accuracy("multiclass", num_classes=CLASSES), SCORES.argmax(1), LABELS).compute()
    metrics = {"auroc": auroc, "rows": SCORES, "max": SCORES.max()}
    right = {f"{ranks} metrics": metrics for ranks in ("flat", "layout")}
    right |= {f"{ranks} loss": torch.tensor(5 / 3) for ranks in ("flat", "layout")}
    right |= {"flat accuracy": accuracy, "pieces along tp": of(MeanShare(), SCORES).compute()}
    wrong = {
        "layout accuracy": (dm.LayoutError, r"the axis dp, .* tn is a DTensor of Replicate"),
        "some without data": (dm.MismatchError, "hold the DTensor total of MeanShare together"),
        "mixed": (dm.StateError, "highest is no DTensor, and another of its metric is"),
    }
    for values in [each["dtensors"] for each in four_processes]:
        assert values.pop("after") == 4
        assert values.keys() == right.keys() | wrong.keys()
        for name, value in right.items():
            torch.testing.assert_close(values[name], value, check_dtype=False)
        for name, (kind, text) in wrong.items():
            with pytest.raises(kind, match=text):
                raise values[name]


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


class _NormPartial(Partial):
    """Stands for the placement of the norms of torch, which is private."""


MESH = [[0, 1], [2, 3]]


def test_of_copies_one_counts() -> None:
    """Of ranks that are not asked copies are of no matter; terms and pieces are missed."""
    for placements, counting in [
        ((Replicate(), Replicate()), [0]),
        ((Shard(0), Replicate()), [0, 2]),
        ((Replicate(), Partial()), [0, 1]),
        ((Partial(), Shard(0)), [0, 1, 2, 3]),
    ]:
        parts = [part_of(on_paper([1.0], MESH, me, *placements), comm_of([0, 1, 2, 3], me), "x") for me in range(4)]
        assert [me for me in range(4) if parts[me].counts] == counting
        assert [part.holders for part in parts] == [(0, 1, 2, 3)] * 4
    part = part_of(on_paper([1.0], MESH, 3, Shard(0), Replicate()), comm_of([1, 3], 3), "x")
    assert (part.counts, part.holders) == (True, (0, 1))
    for placement in (Partial(), Shard(0)):
        with pytest.raises(dm.InputTypeError, match=r"x .* of which ranks \[2\], which are not"):
            part_of(on_paper([1.0], MESH, 3, Shard(0), placement), comm_of([1, 3], 3), "x")


def test_terms_and_rows() -> None:
    """The advice for a part is not the part itself, ``x.to_local()``, which would be counted for the whole."""

    def term(placement: Any, op: str, me: int = 1) -> list[float]:
        part = part_of(on_paper([3.0], [0, 1], me, placement), comm_of([0, 1], me), "x")
        return term_of(part, "x", op).tolist()

    def rows(placement: Any, me: int) -> int:
        part = part_of(on_paper([[3.0]], [0, 1], me, placement), comm_of([0, 1], me), "x")
        return len(rows_of(part, "x"))

    assert [term(Partial(), "sum"), term(Partial("avg"), "sum")] == [[3.0], [1.5]]
    assert [term(Replicate(), "sum", me) for me in (0, 1)] == [[3.0], [0.0]]
    assert term(Replicate(), "prod") == [1.0]
    assert term(Replicate(), "max") == term(Partial("max"), "max") == [3.0]
    for placement in (Partial("max"), _NormPartial(), Shard(0)):
        for op in ("sum", "min"):  # of mean, and of all_reduce
            with pytest.raises(dm.InputTypeError, match=f"which {op} cannot reduce|is not known") as caught:
                term(placement, op)
            assert "x.full_tensor()" in caught.value.do
            assert "distmetrics.grad_norm(parameters)" in caught.value.do
            assert "to_local" not in caught.value.do
    assert [rows(placement, me) for placement in (Shard(0), Replicate()) for me in (0, 1)] == [1, 1, 1, 0]
    with pytest.raises(dm.InputTypeError, match="only pieces of dimension 0"):
        rows(Shard(1), 0)


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
