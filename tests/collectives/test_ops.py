"""Collectives over trees: right for every dtype, memory layout and size, on threads and on real processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.testing import run
from tests.collectives import ranks


@pytest.mark.parametrize("world_size", [1, 3, 5])
@pytest.mark.parametrize("work", ranks.WORKS, ids=lambda work: work.__name__)
def test_on_threads(work: Any, world_size: int) -> None:
    """Each kind of data by itself, so that a failure names it."""
    run(world_size, work)


@pytest.mark.gloo
def test_on_processes() -> None:
    """The same, all in one start of real processes; and gradients, those of one process."""
    check_gradients(run(3, on_process, backend="gloo"))


def on_process(comm: Any) -> Any:
    ranks.everything(comm)
    return ranks.gradients(comm, 7)


def check_gradients(ended: list[Any]) -> None:
    """Against one process: the sum of all ranks' losses, each of the whole stack."""
    leaves = [ranks.leaves(rank, 7) for rank in range(len(ended))]
    a, b = torch.stack([each[0] for each in leaves]), torch.stack([each[1] * 2 for each in leaves])
    torch.stack([ranks.loss_of(rank, a, b) for rank in range(len(ended))]).sum().backward()
    for mine, each in zip(ended, leaves, strict=True):
        torch.testing.assert_close(mine, [each[0].grad, each[1].grad, torch.zeros(4)])


@pytest.mark.parametrize("world_size", [1, 3])
def test_gradients_are_those_of_one_process(world_size: int) -> None:
    """Several leaves, an unused output, an integer leaf in between, another loss on each rank."""
    check_gradients(run(world_size, ranks.gradients, 7))


def test_gathered_leaves_can_be_changed_in_place_and_differentiated_once() -> None:
    """Contrastive losses mask the gathered matrix; a way back for gradients alone would give a part of second ones."""

    def work(comm: Any) -> Any:
        x = torch.ones(2, requires_grad=True)
        one, two = dm.all_gather([x, x * 3], sync_grads=True, comm=comm)
        one += 1
        (one * two).sum().backward()
        assert x.grad is not None
        (first,) = torch.autograd.grad((dm.all_gather(x, sync_grads=True) ** 3).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            first.sum().backward()
        whole = dm.all_gather([torch.tensor(comm.rank)], sync_grads=True)  # of integers nothing flows
        return x.grad.tolist(), whole[0].tolist(), dm.all_gather([], sync_grads=True)

    assert run(2, work) == [([18.0, 18.0], [0, 1], [])] * 2  # 2 ranks × (3·1 + 2·3)


def test_where_all_are_empty_a_shape_with_rows_wins() -> None:
    """``torch.empty(0)`` says nothing of the rows; a rank that gave a shape is believed, whichever it is."""

    def work(comm: Any) -> None:
        for chosen in range(3):
            mine = torch.empty((0, 3), dtype=torch.float64) if comm.rank == chosen else torch.empty(0)
            x = dm.all_gather_cat(mine, comm=comm)
            assert (x.dtype, x.shape) == (torch.float64, (0, 3))

    run(3, work)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=4),
    st.lists(st.sampled_from([torch.int64, torch.float32, torch.bool, torch.complex64]), min_size=3, max_size=3),
    st.booleans(),
)
def test_any_shard_sizes_join_in_rank_order(sizes: list[list[int]], dtypes: list[torch.dtype], bare: bool) -> None:
    """``sizes[rank][leaf]`` rows; with ``bare`` a rank without rows passes ``torch.empty(0)``."""

    def shard(rank: int, leaf: int) -> torch.Tensor:
        rows = torch.arange(2 * sizes[rank][leaf]).reshape(-1, 2) + 10 * rank
        return torch.empty(0) if bare and not len(rows) else rows.to(dtypes[leaf])

    got = run(len(sizes), lambda comm: dm.all_gather_cat([shard(comm.rank, leaf) for leaf in range(3)], comm=comm))
    for leaf in range(3):
        full = [shard(rank, leaf) for rank in range(len(sizes)) if sizes[rank][leaf]]
        for result in got:
            assert result[leaf].shape[0] == sum(map(len, full))
            if full:
                assert torch.equal(result[leaf], torch.cat(full))
                assert result[leaf].dtype == dtypes[leaf]


floats = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=40)
@given(
    st.lists(st.lists(floats, min_size=2, max_size=2), min_size=1, max_size=5),
    st.sampled_from(["sum", "max", "min", "prod"]),
)
def test_reductions_are_torchs_and_bitwise_equal_on_all_ranks(rows: list[list[float]], op: Any) -> None:
    """Against one process in float64; the same bits everywhere, or ranks would decide differently."""
    got = run(len(rows), lambda comm: dm.all_reduce(torch.tensor(rows[comm.rank]), op, comm=comm))
    whole = torch.tensor(rows, dtype=torch.float64)
    if op == "prod":  # what is subnormal in float32 on the way has lost digits, whoever multiplies
        partial = whole.cumprod(0).abs()
        assume(bool(((partial == 0) | (partial > torch.finfo(torch.float32).tiny)).all()))
    wanted = {"sum": whole.sum(0), "max": whole.amax(0), "min": whole.amin(0), "prod": whole.prod(0)}[op]
    torch.testing.assert_close(got[0].double(), wanted.float().double(), rtol=1e-5, atol=1.0 if op == "sum" else 0)
    assert all(x.numpy().tobytes() == got[0].numpy().tobytes() for x in got)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 5), floats), min_size=1, max_size=5).filter(lambda x: any(n for n, _ in x)))
def test_the_weighted_mean_is_that_of_all_samples(parts: list[tuple[int, float]]) -> None:
    """``weight`` samples of ``value`` on each rank: however they are shared, the mean is that of all samples."""

    def work(comm: Any) -> Any:
        samples, value = parts[comm.rank]
        mine = torch.full((samples,), value, dtype=torch.float64).mean()  # NaN on a rank without samples
        weights = samples, float(samples), torch.tensor(samples), torch.tensor(1.0 * samples, requires_grad=True)
        return [dm.mean(mine, weight, comm=comm) for weight in weights]

    whole = torch.cat([torch.full((n,), value, dtype=torch.float64) for n, value in parts])
    for got in run(len(parts), work):
        for mean in got:
            torch.testing.assert_close(mean, whole.mean(), rtol=1e-12, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "op", "wanted"),
    [
        (torch.bool, "sum", torch.int64),
        (torch.bool, "prod", torch.int64),
        (torch.bool, "max", torch.bool),
        (torch.bool, "mean", torch.float64),
        (torch.int8, "mean", torch.float64),
        (torch.uint16, "sum", torch.uint16),
        (torch.int64, "min", torch.int64),
        (torch.bfloat16, "mean", torch.bfloat16),
        (torch.float8_e4m3fn, "sum", torch.float8_e4m3fn),
        (torch.float64, "sum", torch.float64),
        (torch.complex64, "mean", torch.complex64),
    ],
)
def test_the_dtypes_that_users_get(dtype: torch.dtype, op: Any, wanted: torch.dtype) -> None:
    """As documented: kept, but bool is counted and means of integers are never floored."""

    def work(comm: Any) -> Any:
        x = torch.ones(2).to(dtype)
        return dm.mean(x, 1, comm=comm) if op == "mean" else dm.all_reduce(x, op, comm=comm)

    got = run(2, work)
    assert [x.dtype for x in got] == [wanted] * 2
    assert got[0].tolist() == ([2, 2] if op == "sum" else [1, 1])


def test_results_do_not_share_memory_with_the_input() -> None:
    """Changing a result must not change a parameter, in a world of one neither."""
    x = torch.ones(3)
    for call in (dm.all_gather, dm.all_gather_cat, dm.all_reduce, dm.broadcast, lambda x: dm.mean(x, 1)):
        call(x).fill_(5)
        assert x.tolist() == [1, 1, 1]
