"""Collectives over trees: right for every dtype, memory layout and size, on threads and on real processes."""

from __future__ import annotations

from collections.abc import Callable
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
def test_on_threads(work: Callable[..., Any], world_size: int) -> None:
    """Each kind of data by itself, so that a failure names it."""
    run(world_size, work)


@pytest.mark.gloo
def test_on_processes() -> None:
    """The same, all in one start of real processes; and gradients, those of one process."""
    ended = run(3, on_process, backend="gloo")
    for mine, reference in zip(ended, reference_gradients(3, 7), strict=True):
        torch.testing.assert_close(mine, reference)


def on_process(comm: Any) -> Any:
    ranks.everything(comm)
    return ranks.gradients(comm, 7)


def test_large_worlds_whose_frames_are_of_odd_size() -> None:
    """Beyond 64 ranks frames shrink; the data in them must stay aligned for every dtype."""

    def work(comm: Any) -> Any:
        return dm.all_reduce({"a": torch.ones(3, dtype=torch.float64), "b": 1, "c": True}, comm=comm)["a"][0].item()

    assert run(65, work) == [65.0] * 65


# -- gradients


def reference_gradients(world_size: int, seed: int) -> list[list[torch.Tensor]]:
    """The same in one process: the sum of all ranks' losses, each of the whole stack."""
    all_leaves = [ranks.leaves(rank, seed) for rank in range(world_size)]
    a = torch.stack([leaves[0] for leaves in all_leaves])
    b = torch.stack([leaves[1] * 2 for leaves in all_leaves])
    torch.stack([ranks.loss_of(rank, a, b) for rank in range(world_size)]).sum().backward()
    return [[leaves[0].grad, leaves[1].grad, torch.zeros(4)] for leaves in all_leaves]  # type: ignore[list-item]


@pytest.mark.parametrize("world_size", [1, 3])
def test_gradients_are_those_of_one_process(world_size: int) -> None:
    """Several leaves, an unused output, an integer leaf in between, another loss on each rank."""
    wanted = reference_gradients(world_size, 7)
    for mine, reference in zip(run(world_size, ranks.gradients, 7), wanted, strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(mine, reference)


def test_second_derivatives_are_refused() -> None:
    """A way back for gradients alone would give a part of them without a word."""

    def work(comm: Any) -> None:
        x = torch.ones(2, requires_grad=True)
        (first,) = torch.autograd.grad((dm.all_gather(x, sync_grads=True) ** 3).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            first.sum().backward()

    run(2, work)


def test_gathered_leaves_can_be_changed_in_place() -> None:
    """Contrastive losses mask the gathered matrix in place; outputs must not be views of one buffer."""

    def work(comm: Any) -> Any:
        x = torch.ones(2, requires_grad=True)
        one, two = dm.all_gather([x, x * 3], sync_grads=True, comm=comm)
        one += 1
        (one * two).sum().backward()
        return x.grad.tolist()  # type: ignore[union-attr]

    assert run(2, work) == [[18.0, 18.0]] * 2  # 2 ranks × (3·1 + 2·3)


def test_leaves_of_integers_alone_have_no_gradients() -> None:
    """``sync_grads`` on integers is no error; there is only nothing to flow."""
    assert dm.all_gather([], sync_grads=True) == []
    assert (
        run(2, lambda comm: dm.all_gather(torch.tensor(comm.rank), sync_grads=True, comm=comm).tolist()) == [[0, 1]] * 2
    )


# -- all_gather_cat


def test_an_empty_leaf_takes_the_dtype_and_width_of_the_others() -> None:
    """``torch.empty(0)`` is how a rank without data says so, next to leaves in which it has some."""

    def work(comm: Any) -> Any:
        first = torch.ones(2, dtype=torch.float64) if comm.rank == 0 else torch.empty(0)
        tree = {
            "a": first,
            "b": torch.full((2,), comm.rank, dtype=torch.float64),
            "c": torch.full((3,), 7.0 + comm.rank),
        }
        return {key: x.tolist() for key, x in dm.all_gather_cat(tree, comm=comm).items()}

    wanted = {"a": [1, 1], "b": [0, 0, 1, 1], "c": [7, 7, 7, 8, 8, 8]}
    assert run(2, work) == [wanted] * 2


def test_where_all_are_empty_a_shape_with_rows_wins() -> None:
    """``torch.empty(0)`` says nothing of the rows; a rank that gave a shape is believed, whichever it is."""
    for chosen in range(3):

        def work(comm: Any, chosen: int = chosen) -> Any:
            mine = torch.empty((0, 3), dtype=torch.float64) if comm.rank == chosen else torch.empty(0)
            return dm.all_gather_cat(mine, comm=comm)

        assert [(x.dtype, x.shape) for x in run(3, work)] == [(torch.float64, (0, 3))] * 3


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
            if full:
                assert torch.equal(result[leaf], torch.cat(full))
                assert result[leaf].dtype == dtypes[leaf]
            else:
                assert result[leaf].shape[0] == 0


# -- reductions

floats = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=40)
@given(
    st.lists(st.lists(floats, min_size=2, max_size=2), min_size=1, max_size=5),
    st.sampled_from(["sum", "max", "min", "prod"]),
)
def test_reductions_are_torchs_and_bitwise_equal_on_all_ranks(rows: list[list[float]], op: str) -> None:
    """Against one process in float64; the same bits everywhere, or ranks would decide differently."""
    got = run(len(rows), lambda comm: dm.all_reduce(torch.tensor(rows[comm.rank]), op, comm=comm))  # type: ignore[arg-type]
    whole = torch.tensor(rows, dtype=torch.float64)
    if op == "prod":  # what is subnormal in float32 on the way has lost digits, whoever multiplies
        partial = whole.cumprod(0).abs()
        assume(bool(((partial == 0) | (partial > torch.finfo(torch.float32).tiny)).all()))
    wanted = {
        "sum": whole.sum(0),
        "max": whole.amax(0),
        "min": whole.amin(0),
        "prod": whole.prod(0),
    }[op]
    torch.testing.assert_close(got[0].double(), wanted.float().double(), rtol=1e-5, atol=1.0 if op == "sum" else 0)
    assert all(x.numpy().tobytes() == got[0].numpy().tobytes() for x in got)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 5), floats), min_size=1, max_size=5).filter(
        lambda parts: any(n for n, _ in parts)
    )
)
def test_the_weighted_mean_is_that_of_all_samples(parts: list[tuple[int, float]]) -> None:
    """``weight`` samples of ``value`` on each rank: however they are shared, the mean is that of all samples."""

    def work(comm: Any) -> Any:
        samples, value = parts[comm.rank]
        mine = torch.full((samples,), value, dtype=torch.float64).mean()  # NaN on a rank without samples
        return dm.mean(mine, samples, comm=comm)

    whole = torch.cat([torch.full((n,), value, dtype=torch.float64) for n, value in parts])
    for got in run(len(parts), work):
        torch.testing.assert_close(got, whole.mean(), rtol=1e-12, atol=1e-6)


@pytest.mark.parametrize("weight", [2, 2.0, True, torch.tensor(2), torch.tensor(2.0, requires_grad=True)])
def test_any_single_number_is_a_weight(weight: Any) -> None:
    """Batch sizes come as ints, losses' weights as tensors."""
    assert dm.mean(3.0, weight) == 3.0


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
def test_the_dtypes_that_users_get(dtype: torch.dtype, op: str, wanted: torch.dtype) -> None:
    """As documented: kept, but bool is counted and means of integers are never floored."""

    def work(comm: Any) -> Any:
        x = torch.ones(2).to(dtype)
        return dm.mean(x, 1, comm=comm) if op == "mean" else dm.all_reduce(x, op, comm=comm)  # type: ignore[arg-type]

    got = run(2, work)
    assert [x.dtype for x in got] == [wanted] * 2
    assert got[0].tolist() == ([2, 2] if op == "sum" else [1, 1])


def test_results_do_not_share_memory_with_the_input() -> None:
    """Changing a result must not change a parameter, in a world of one neither."""
    x = torch.ones(3)
    for call in (dm.all_gather, dm.all_gather_cat, dm.all_reduce, dm.broadcast, lambda x: dm.mean(x, 1)):
        call(x).fill_(5)
        assert x.tolist() == [1, 1, 1]
