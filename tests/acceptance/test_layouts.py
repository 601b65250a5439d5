from __future__ import annotations

import functools
import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils.data import DataLoader
from torchmetrics import CatMetric, SumMetric

import distmetrics as dm
from distmetrics import (
    ConfigurationError,
    InputError,
    InputTypeError,
    LayoutError,
    MismatchError,
    train,
)
from distmetrics.data import exact
from distmetrics.guard import guarded_epoch
from distmetrics.strategies import FSDPSpawn
from distmetrics.testing import outcomes
from tests.acceptance import same_error
from tests.acceptance.test_collectives import caught, odd, on_ranks, told

PLANE = {"dp": 2, "tp": 2}
ROLES = [*itertools.product(("shard", "same"), ("shard", "same", "last")), (1, "shard")]
ROWS = torch.arange(16.0).reshape(4, 4)
sync = dm.sync_and_compute


def of(metric: Any, *values: Any) -> Any:
    metric.update(*values)
    return metric


@on_ranks(4)
def test_each_shard_counts_once_and_every_rank_gets_the_result(comm: Any) -> None:
    for a, b in ROLES:
        over = dm.layout({"a": 2, "b": 2}, comm=comm, a=a, b=b)
        vs = [*range(1, 1 + 2 ** (a, b).count("shard"))]
        assert over.world_size == len(vs)
        v = vs[over.rank] if over.mesh.owns(comm.rank) else None  # who has none may pass anything
        mean = sum(v * v for v in vs) / sum(vs)
        with dm.use(over), guarded_epoch("all", comm=over):
            assert dm.all_gather(v).tolist() == vs
            assert dm.all_gather_cat(torch.ones(v) if v else "nothing").numel() == sum(vs)
            assert dm.all_gather_object(v) == dm.gather_samples([v], [v]).tree == vs
            assert (dm.all_reduce(v), dm.broadcast(v), dm.all_true(v)) == (sum(vs), 1, True)
            assert float(dm.mean(v, weight=v if v else 0)) == mean
            assert float(sync(of(SumMetric(), v) if v else None)) == sum(vs)
            log = dm.Log()
            log.mean("x", v if v else "nothing", weight=v if v else -1)
            assert log.flush() == {"x": mean}
            rows = caught(dm.all_gather, torch.ones(1, requires_grad=True), sync_grads=True)
            assert isinstance(rows, InputError) != ({a, b} <= {"shard", "same"})
        order = torch.Generator().manual_seed(comm.rank)
        loader = exact(DataLoader(range(9), 2, shuffle=True, generator=order), comm=over)
        everyone = dm.all_gather_object((over.rank, torch.cat([*loader]).tolist()), comm=over.whole)
        assert all(mine == dict(everyone)[shard] for shard, mine in everyone)  # the same batches
        assert sorted(itertools.chain(*dict(everyone).values())) == [*range(9)]
        dm.barrier(comm=over)


def at_a_barrier(c: Any, over: Any) -> None:
    dm.any_true(False) if c.rank == 0 else dm.barrier(comm=over)  # of all ranks of the mesh


def plane(c: Any, dp: Any = "shard", tp: Any = "same", **more: Any) -> Any:
    return dm.layout(PLANE, comm=c, dp=dp, tp=tp, **more)


# The error of all ranks, a phrase of it, and what each of four ranks does.
FAULTS: list[Any] = [
    (LayoutError, "x.sum_value", lambda c: sync({"x": of(SumMetric(), c.rank)}, comm=plane(c))),
    (LayoutError, "axis dp", lambda c: sync(of(CatMetric(), ROWS.sin()), comm=plane(c))),
    (LayoutError, "axis tp", lambda c: dm.mean(1 + 0.1 * c.rank, 1, comm=plane(c, same="close"))),
    (ConfigurationError, "dp (2), tp (2)", lambda c: dm.layout(PLANE, comm=c, dp="shard")),
    (ConfigurationError, "tp=2", lambda c: plane(c, tp=2)),
    (ConfigurationError, "axis pp", lambda c: plane(c, pp="last")),
    (ConfigurationError, "3 ranks", lambda c: dm.layout({"dp": 3}, comm=c, dp="shard")),
    (ConfigurationError, "axis a", lambda c: dm.layout.of({"a": 2, "b": 2}, comm=c)),
    (MismatchError, "rank 1", lambda c: plane(c, tp=odd(c, "shard", "same"))),
    (dm.StateError, "ranks 1, 3", lambda c: sync(None, comm=plane(c, tp="last"))),
    (MismatchError, "any_true", lambda c: at_a_barrier(c, plane(c, tp="last"))),
    (InputError, "zero", lambda c: dm.mean(None, weight=0, comm=plane(c, tp="last"))),
]


@on_ranks(4)
def test_a_wrong_claim_is_an_error_on_every_rank(comm: Any) -> None:
    """But no rounding where one says so, and nothing of ranks that are said to have no values."""
    first, second, *_ = told(comm, FAULTS)
    assert ("axis tp" in first.what, first.peers) == (True, (0, 1))
    assert "ranks 0, 2" in second.what
    near = 1 + comm.rank // 2 + 1e-5 * (comm.rank % 2)
    assert dm.mean(near, 1, comm=plane(comm, same="close")) == 1.5  # the first one's
    false = plane(comm, dp="first", tp="shard")  # the other ranks have the loss
    assert int(dm.all_reduce(10 * comm.rank, comm=false)) == 10
    has_loss = dm.all_gather(comm.rank >= 2, comm=false.whole).tolist()  # so ranks can find out
    assert has_loss == [not false.mesh.owns(rank) for rank in range(4)]


@on_ranks(4, backends=("threads",))
def test_what_owners_cannot_hand_over_is_an_error_with_its_rank(comm: Any) -> None:
    over = plane(comm, tp="last")
    error = caught(dm.all_gather_object, object(), allow_pickle=True, comm=over)
    assert type(error) is InputTypeError
    assert error.rank == comm.rank


def test_a_flat_sync_of_copies_is_an_error_in_strict_mode(monkeypatch: Any) -> None:
    monkeypatch.setenv("DISTMETRICS_GUARD", "strict")
    ended = outcomes(4, lambda c: sync(of(CatMetric(), ROWS.sin() + c.rank // 2)))
    same_error(ended, dm.StateError, "ranks 0-1 and 2-3 hold the same data: it is counted 2 times")


def weight(*gradient: float) -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.zeros(len(gradient)))
    made.grad = torch.tensor(gradient) if gradient else None
    return made


NORM_FAULTS: list[Any] = [
    (LayoutError, 'pp="shard"', lambda c: dm.grad_norm(weight(1.5 + c.rank), comm=c)),
    (LayoutError, "ranks 0-3", lambda c: dm.grad_norm([weight(0.5)] * (c.rank != 2), comm=c)),
    (LayoutError, "twice", lambda c: dm.grad_norm(weight(1.5, 2), comm=plane(c, tp="shard"))),
    (LayoutError, '"e"', lambda c: dm.grad_norm([], shared={"e": weight(1.5 + c.rank)}, comm=c)),
    (InputError, "got 0", lambda c: dm.grad_norm(weight(1.5), norm_type=odd(c, 0, 2), comm=c)),
    (InputTypeError, "str", lambda c: dm.grad_norm(odd(c, ["x"], [weight(1.5)]), comm=c)),
    (InputError, "axis tp", lambda c: dm.grad_norm(weight(1.5), comm=plane(c, tp="last"))),
]


@on_ranks(4)
def test_gradients_of_stages_count_once(comm: Any) -> None:
    over = dm.layout({"pp": 2, "dp": 2}, comm=comm, pp="shard", dp="same")
    own, tied = weight(3.0 + comm.rank // 2), weight(12.0)
    for parameters in ([own, own, weight()], iter([own, tied])):
        assert float(dm.grad_norm(parameters, shared={"embedding": tied}, comm=over)) == 13
    assert float(dm.grad_norm(own, float("inf"), comm=over)) == 4
    with dm.use(plane(comm)):  # of data
        assert float(dm.grad_norm(weight(3.0, 4.0))) == 5
    assert len([*told(comm, NORM_FAULTS)]) == len(NORM_FAULTS)


@on_ranks(4, backends=("gloo",))
def test_layout_of_reads_the_mesh_that_a_job_has(comm: Any) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    sizes = {"pipeline_model": 2, "data": 1, "context": 1, "tensor_model": 2}
    here = {"pipeline_model": comm.rank // 2, "tensor_model": comm.rank % 2}
    state = {f"get_{x}_parallel_world_size": lambda x=x: sizes[x] for x in sizes}
    state |= {f"get_{x}_parallel_rank": lambda x=x: here.get(x, 0) for x in sizes}
    sys.modules["megatron.core.parallel_state"] = SimpleNamespace(**state)
    for source in (mesh, SimpleNamespace(torch_device_mesh=mesh), "megatron", {"pp": 2, "tp": 2}):
        over = dm.layout.of(source)
        assert [over.mesh.owns(rank) for rank in range(4)] == [False, False, True, True]
    for name in ("dp", "dp_replicate", "dp_shard", "fsdp", "ep", "cp", "sp"):
        assert dm.layout.of({name: 2, "tp": 2}).world_size == 2
    assert dm.layout.of({"x": 2, "tp": 2}, x="shard", tp="shard").world_size == 4


@on_ranks(4, backends=("gloo",))
def test_dtensors_count_by_their_placements(comm: Any) -> None:
    """And what placements and roles, or ranks, say differently is an error on every rank."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    ranks, half = dm.layout(mesh, dp="shard", tp="same"), ROWS.chunk(2)[comm.rank // 2]
    rows = DTensor.from_local(half, mesh, [Shard(0), Replicate()])
    term = DTensor.from_local(torch.tensor(1.0 + comm.rank), mesh, [Partial(), Partial()])
    piece = DTensor.from_local(half.chunk(2, 1)[comm.rank % 2], mesh, [Shard(0), Shard(1)])
    pieces, copies = of(SumMetric(), 0.0), of(SumMetric(), 0.0)
    pieces.sum_value = piece.sum(0)
    copies.sum_value = DTensor.from_local(ROWS, mesh, [Replicate(), Replicate()]).sum(0)
    for over in (comm, ranks):
        with dm.use(over):
            assert float(dm.mean(rows.mean(), weight=1)) == 7.5
            assert torch.equal(dm.all_reduce(rows.sum(0)), ROWS.sum(0))
            assert torch.equal(dm.all_reduce(rows.amax(0), "max"), ROWS.amax(0))
            assert torch.equal(dm.all_gather_cat(rows), ROWS)
    assert dm.all_reduce(term) == 10
    assert sync(pieces).tolist() == sync(copies).tolist() == ROWS.sum(0).tolist()
    with dm.synced(pieces):
        assert pieces.sum_value.to_local().shape == (2,)  # it is not gathered
    faults = [
        (InputTypeError, "Shard", lambda _: dm.all_gather(rows)),
        (InputTypeError, "max", lambda _: dm.all_reduce(term, "max")),
        (MismatchError, "ranks 0-3", lambda c: dm.mean(rows.mean(), weight=1 + c.rank)),
        (MismatchError, "float32", lambda c: dm.all_reduce(odd(c, ROWS.sum(0), rows.sum(0)))),
    ]
    assert len([*told(comm, faults)]) == 4
    for metric, axis in ((pieces, "axis tp"), (copies, "axis dp")):
        error = caught(sync, metric, comm=ranks)
        assert (type(error), axis in error.what) == (LayoutError, True)


class Idle(train.Module):
    validation_step = print


def loop(runner: Any) -> Any:
    loader = runner.setup_dataloaders(DataLoader(range(7), 2), train=False)
    total = sum(batch.sum() for batch in loader)
    # Over a layout random numbers of ranks with the same samples are compared.
    return runner.all_reduce([total, 1, torch.rand(())])[:2], dm.current().world_size


@pytest.mark.gloo
def test_a_runner_deals_data_to_the_shards() -> None:
    """By sizes, by a function, and by roles of the strategy's own mesh."""
    function = functools.partial(dm.layout, {"x": 2, "y": 2}, x="same", y="shard")
    own = {"replicate": "shard", "shard": "same"}
    strategies = ("ddp_fork", PLANE), ("ddp_fork", function), (FSDPSpawn(replicas=2), own)
    for strategy, layout in strategies:
        runner = dm.Runner(strategy=strategy, devices=4, accelerator="cpu", layout=layout, seed=1)
        assert runner.launch(loop) == ([21, 2], 2)
    trainer = train.Trainer(strategy="ddp_fork", devices=2, accelerator="cpu", layout={"pp": 2})
    with pytest.raises(dm.DistmetricsError, match="axis pp"):
        trainer.validate(Idle(), DataLoader(range(2)))
