"""The norm of gradients is that of one process, however ranks hold them; or an error on every rank."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import distmetrics as dm
from benchmarks.grad_norm import PROCESSES, norms
from distmetrics import InputError, InputTypeError, LayoutError, MismatchError
from distmetrics.layouts.grad_norm import GradientNorm, total
from distmetrics.layouts.mesh import Mesh
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator
from tests.layouts.processes import on_four_processes

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
ORDERS = [1, 2.0, 2.5, 3, 40, math.inf, "inf"]


def weight(gradient: Any, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """Return a parameter with a gradient, or without if it is None."""
    value = None if gradient is None else torch.as_tensor(gradient).to(dtype)
    made = nn.Parameter(torch.zeros(2 if value is None else value.shape, dtype=dtype))
    made.grad = value
    return made


def drawn(stage: int, number: int, shape: Any, dtype: torch.dtype) -> nn.Parameter:
    generator = torch.Generator().manual_seed(100 * stage + number)
    return weight(torch.randn(*shape, generator=generator), dtype)


def right(weights: list[nn.Parameter], order: Any) -> float:
    """Return the norm in double precision."""
    flat = [each.grad.abs().double().flatten() for each in weights if each.grad is not None]
    return float(torch.linalg.vector_norm(torch.cat([*flat, torch.zeros(1)]), float(order)))


shapes = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=4)
gradients = st.tuples(shapes, st.sampled_from(DTYPES))


def of_stages(comm: Any, stages: list[Any], copies: int, tied: bool, order: Any) -> Tensor:
    over = dm.layout({"pp": len(stages), "dp": copies}, comm=comm, pp="shard", dp="same")
    stage = comm.rank // copies
    made, dtype = stages[stage]
    weights = [drawn(stage, number, shape, dtype) for number, shape in enumerate(made)]
    twice = [*weights, *weights[:1], weight(None)]
    embedding = drawn(99, 0, (3,), torch.float32)
    if not tied:
        return dm.grad_norm(iter(twice), order, comm=over)
    ends = stage in (0, len(stages) - 1)
    shared = {"embedding": embedding} if ends else None
    if stage == 0:  # whether it is among the parameters as well does not matter
        twice.append(embedding)
    return dm.grad_norm(twice, order, shared=shared, comm=over)


@settings(max_examples=25)
@given(st.lists(gradients, min_size=1, max_size=3), st.integers(1, 2), st.booleans(), st.sampled_from(ORDERS))
def test_stages_and_copies_count_once(stages: list[Any], copies: int, tied: bool, order: Any) -> None:
    found = run(len(stages) * copies, of_stages, stages, copies, tied, order)
    weights = [
        drawn(stage, number, shape, dtype)
        for stage, (made, dtype) in enumerate(stages)
        for number, shape in enumerate(made)
    ]
    is_double = any(each.dtype == torch.float64 for each in weights)
    if tied:
        weights.append(drawn(99, 0, (3,), torch.float32))
    for norm in found:
        assert norm.ndim == 0
        assert norm.dtype == (torch.float64 if is_double else torch.float32)
        torch.testing.assert_close(norm, found[0], rtol=0, atol=0)
        assert float(norm) == pytest.approx(right(weights, order), rel=1e-6)


def of_layouts(comm: Any) -> dict[str, dict[float, tuple[float, float]]]:
    names = [name for name, processes in PROCESSES.items() if processes == comm.world_size]
    return {name: norms(comm, name) for name in names}


@on_four_processes
@pytest.mark.parametrize("world_size", sorted({*PROCESSES.values()}))
def test_placements_say_what_ranks_hold(world_size: int, request: pytest.FixtureRequest) -> None:
    if world_size == 4:
        ranks = [each["norms"] for each in request.getfixturevalue("four_processes")]
    else:
        ranks = run(world_size, of_layouts, backend="gloo", limit=200)
    for found in ranks:
        for name, by_order in found.items():
            for alone, norm in by_order.values():
                assert norm == pytest.approx(alone, rel=1e-6), name


def on_parts_of_meshes() -> None:
    """DTensors whose parts are not asked are refused."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Shard

    def placed(over: Any, placement: Any) -> nn.Parameter:
        parameter = nn.Parameter(DTensor.from_local(torch.ones(1), over, [placement]))
        parameter.grad = parameter.detach()
        return parameter

    mesh, rows = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")), init_device_mesh("cpu", (4,))
    part = dm.GroupCommunicator(mesh["b"].get_group())
    for weights, over, text in [
        (placed(rows, Shard(0)), part, "Shard(dim=0)"),
        (placed(rows, Partial("max")), None, "pieces, sums or averages"),
        (placed(mesh["a"], Shard(0)), dm.layout({"a": 4}, a="shard"), "is a DTensor of 2 of the 4 ranks along a"),
    ]:
        with pytest.raises(InputError) as caught:
            dm.grad_norm(weights, comm=over)
        assert text in str(caught.value)


def of_experts(comm: Any) -> list[float]:
    """Return norms of experts on a mesh of their own beside weights that are sharded otherwise."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    crossed = DeviceMesh("cpu", [[0, 2], [1, 3]])  # unnamed, as the next one is
    rows = DeviceMesh("cpu", [[0, 1], [2, 3]])
    whole = torch.arange(5.0)
    dp, ep = mesh.get_local_rank("dp"), mesh.get_local_rank("ep")

    def placed(local: Tensor, over: Any, *placements: Any, size: int = 5) -> nn.Parameter:
        made = DTensor.from_local(local, over, placements, shape=torch.Size([size]), stride=(1,))
        parameter = nn.Parameter(torch.zeros_like(made))
        parameter.grad = made
        return parameter

    parts = [whole[:3], whole[3:]]
    inner = (dp, ep)
    experts = placed(parts[ep], mesh["ep"], Shard(0))
    dense = placed(parts[dp], mesh["dp"], Shard(0))
    first = placed(parts[dp], rows, Shard(0), Replicate())
    second = placed(parts[inner[1]], crossed, Shard(0), Replicate())
    term = placed(whole * (1 + 2 * ep) / 4, mesh["ep"], Partial("sum"))
    average = placed(whole * 2 * dp, mesh["dp"], Partial("avg"))
    sets = [[experts, dense], [first, second], [term, average, weight(whole), experts]]
    on_parts_of_meshes()
    return [float(dm.grad_norm(each)) / math.sqrt(30 * len(each)) for each in sets]


@on_four_processes
def test_meshes_of_one_model_may_differ_and_terms_are_reduced(four_processes: list[Any]) -> None:
    for each in four_processes:
        assert each["experts"] == pytest.approx([1.0] * 3, rel=1e-6)


def clipped(comm: Any) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    fully_shard(net[0], mesh=init_device_mesh("cpu", (4,)))
    net(torch.ones(2, 3)).square().sum().backward()
    norms = []
    for max_norm in (0.5, 0.25):
        norm = dm.grad_norm(net.parameters())
        norms.append(float(norm))
        nn.utils.clip_grads_with_norm_(net.parameters(), max_norm, norm, foreach=False)
    return [*norms[1:], float(dm.grad_norm(net.parameters()))]


@on_four_processes
def test_torch_clips_by_it(four_processes: list[Any]) -> None:
    for each in four_processes:
        assert each["clipped"] == pytest.approx([0.5, 0.25], rel=1e-4)


@pytest.mark.parametrize(("value", "norm"), [(math.nan, math.nan), (math.inf, math.inf), (-math.inf, math.inf)])
@pytest.mark.parametrize("order", [1, 2, math.inf])
def test_what_is_not_finite_is_so_on_every_rank(value: float, norm: float, order: float) -> None:
    def norm_of(comm: Any) -> Tensor:
        own = weight([value if comm.rank == 1 else 1.0])
        over = dm.layout({"pp": 2, "dp": 2}, comm=comm, pp="shard", dp="same")
        stage = weight([value]) if comm.rank > 1 else weight(None)
        return torch.stack([dm.grad_norm(own, order, comm=comm), dm.grad_norm(stage, order, comm=over)])

    for found in run(4, norm_of):
        torch.testing.assert_close(found, torch.tensor([norm, norm]), equal_nan=True)


def test_half_precision_neither_rounds_nor_overflows() -> None:
    """And of a large tensor torch's own norm is wrong by 1e-5."""
    half = [weight([300.0, 400.0], torch.float16), *[weight([60000.0], torch.float16) for _ in range(4)]]
    assert float(dm.grad_norm(half)) == pytest.approx(math.hypot(500.0, 120000.0), rel=1e-6)
    assert float(dm.grad_norm(weight([1.0, 1.0], torch.bfloat16))) == pytest.approx(math.sqrt(2), rel=1e-7)
    for dtype in (torch.float32, torch.bfloat16):
        large = weight(torch.rand(1000, 1001, generator=torch.Generator().manual_seed(0)).T, dtype)
        assert float(dm.grad_norm(large)) == pytest.approx(right([large], 2), rel=1e-6)


def test_a_norm_is_one_collective() -> None:
    def work(comm: Any) -> None:
        record = RecordingCommunicator(comm)
        for size in (1, 100_000):
            dm.grad_norm([weight([2.0] * size), weight(None)], comm=record)
        assert dm.grad_norm(iter(()), comm=record) == 0.0
        assert len(record.calls) == 3

    run(3, work)


class Sparse(nn.Parameter):
    grad = torch.eye(2).to_sparse()


# What each of four ranks does, the error of all of them, and a phrase of it.
FAULTS: list[Any] = [
    (
        lambda c: dm.grad_norm(weight([1.0, 2.0 + 0.1 * (c.rank == 3)]), comm=c),
        LayoutError,
        "rank 3     plain gradients: 1 of 2 elements, norm 2.325941",
    ),
    (
        lambda c: dm.grad_norm(weight([1.0]), 1 + c.rank // 2, comm=c),
        MismatchError,
        "grad_norm of order 2 over rank 4 same",
    ),
    (lambda c: dm.grad_norm(nn.Linear(1, 1) if c.rank == 3 else [], comm=c), InputTypeError, "pass model.parameters()"),
    (
        lambda c: dm.grad_norm(nn.Linear(1, 1).named_parameters(), comm=c),
        InputTypeError,
        "grad_norm: parameters must be tensors, got a tuple",
    ),
    (
        lambda c: dm.grad_norm([], shared=weight([1.0, 2.0]) if c.rank else {}, comm=c),
        InputTypeError,
        "and shared= as a dict of parameters by name",
    ),
    (
        lambda c: dm.grad_norm(Sparse(torch.zeros(2, 2)), comm=c),
        InputTypeError,
        "the gradient of parameter 0 has the layout torch.sparse_coo",
    ),
]


def test_a_fault_of_one_rank_is_one_error_on_every_rank() -> None:
    def work(comm: Any) -> list[str]:
        texts = []
        for call, kind, phrase in FAULTS:
            with pytest.raises(kind) as caught:
                call(comm)
            assert phrase in str(caught.value)
            assert caught.value.rank == comm.rank
            texts.append(str(caught.value))
            assert dm.grad_norm(weight([3.0, 4.0]), comm=comm) == 5.0  # the ranks are in step
        return texts

    first, *others = run(4, work)
    assert others == [first] * 3


def test_pieces_without_a_rank_are_refused_on_paper() -> None:
    """Two stages of FSDP without a layout: as many elements, but other gradients."""
    mesh = Mesh({"rank": 4}, {"rank": "same"})
    told = [[GradientNorm("1 of 2 elements", "", (), f"{rank % 2}/2", 1.0 + rank // 2)] for rank in range(4)]
    with pytest.raises(LayoutError, match="ranks 0-3 should hold the same"):
        total(told, mesh, 2.0, 0)
    told = [[each[0].but(norm=3.0 + rank % 2)] for rank, each in enumerate(told)]
    assert total(told, mesh, 2.0, 0) == pytest.approx(5.0)
    with pytest.raises(LayoutError, match="ranks 0-3 should hold the same"):
        total([*told[:3], []], mesh, 2.0, 0)
