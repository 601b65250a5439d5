"""States as users make them: every dtype and layout is synced right, or refused on every rank with its name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import Metric, aggregation

from distmetrics import StateError, sync_and_compute
from distmetrics.testing import outcomes, run
from tests.backends import same_error


class Holds(Metric):
    """One state, set by update."""

    def __init__(self, reduction: Any, default: Any = 0.0) -> None:
        super().__init__()
        self.add_state("state", default if isinstance(default, list) else torch.tensor(default), reduction)

    def update(self, x: Any) -> None:
        self.state = x

    def compute(self) -> Any:
        return self.state


def synced_state(reduction: Any, *per_rank: Any, default: Any = 0.0) -> Any:
    """Give each rank its value, None for no update; return the state that all of them get."""

    def work(comm: Any) -> Any:
        metric = Holds(reduction, default)
        if per_rank[comm.rank] is not None:
            metric.update(per_rank[comm.rank])
        value = sync_and_compute(metric, comm=comm)
        assert per_rank[comm.rank] is None or metric.state is per_rank[comm.rank]  # the very object is back
        return value

    got = run(len(per_rank), work)
    for other in got[1:]:
        assert repr(other) == repr(got[0])
    return got[0]


def tensor(value: Any, dtype: torch.dtype) -> Tensor:
    return torch.tensor(value, dtype=dtype)


# -- dtypes

MEANS = [
    ([3, 4], torch.int64, 3.5),
    ([200, 200], torch.uint8, 200.0),
    ([2**31 - 1] * 2, torch.int32, float(2**31)),
    ([True, False, False, False], torch.bool, 0.25),
    ([40_000.0, 40_000.0], torch.float16, 40_000.0),
    ([256.0, 1.0, 1.0], torch.bfloat16, 86.0),
    ([1 + 2j, 3 - 2j], torch.complex64, 2 + 0j),
]


@pytest.mark.parametrize(("values", "dtype", "wanted"), MEANS, ids=lambda x: str(x))
def test_the_mean_has_room(values: Any, dtype: torch.dtype, wanted: Any) -> None:
    """The sum behind a mean may not fit where the mean does; the mean of integers is no integer."""
    for size in (1, 60_000):
        got = synced_state("mean", *(tensor(value, dtype).repeat(size) for value in values))
        assert got.dtype == (dtype if dtype.is_floating_point or dtype.is_complex else torch.float32)
        assert torch.equal(got.reshape(-1), torch.full((size,), wanted, dtype=got.dtype))
    alone = synced_state("mean", None, tensor(1, dtype), None)  # ranks without an update are not averaged in
    assert (alone.dtype, alone.item()) == (dtype, 1)


MIXED = [
    ("sum", torch.float32, torch.float64, torch.float64),
    ("sum", torch.bfloat16, torch.float32, torch.float32),
    ("max", torch.bfloat16, torch.float16, torch.float32),
    ("mean", torch.int64, torch.float64, torch.float64),
    ("sum", torch.complex64, torch.float64, torch.complex128),
    ("cat", torch.int32, torch.float64, torch.float64),
]


@pytest.mark.parametrize(("reduction", "one", "other", "wanted"), MIXED, ids=str)
def test_ranks_of_different_dtype(reduction: str, one: Any, other: Any, wanted: Any) -> None:
    """Promoted as torch promotes, to the same on every rank; the local dtypes are as before."""
    values = [tensor([1], one), None, tensor([1], other)]
    lists = [value if value is None or reduction != "cat" else [value] for value in values]
    for each in (lists, lists[::-1]):
        got = synced_state(reduction, *each, default=[] if reduction == "cat" else 0.0)
        (got,) = got if isinstance(got, list) else (got,)
        assert got.dtype == wanted
        assert got.reshape(-1).tolist() == {"sum": [2], "cat": [1, 1]}.get(reduction, [1])


def test_sums_keep_their_dtype_and_are_folded_wide() -> None:
    """Integers wrap as in one process that adds in place; 256 + 1 is 256 in bfloat16, and yet each rank counts."""
    total = tensor(200, torch.uint8)
    total += tensor(200, torch.uint8)
    assert torch.equal(synced_state("sum", *[tensor(200, torch.uint8)] * 2), total)
    values = [tensor(x, torch.bfloat16) for x in (256, 1, 1, 1, 1)]
    assert torch.equal(synced_state("sum", *values), tensor(260, torch.bfloat16))


# -- layouts


SEVEN = torch.arange(7.0)
LAYOUTS = [
    SEVEN[::3],
    SEVEN[:6].reshape(2, 3).T,
    torch.tensor(2.0).expand(2, 3),
    torch.ones(0, 3),
    (SEVEN * 1j).conj(),
    (SEVEN * 1j).conj().imag,
    torch.rand(2, 3, 2, 2).to(memory_format=torch.channels_last),
]


@pytest.mark.parametrize("made", LAYOUTS, ids=["step", "turned", "expanded", "empty", "conj", "negated", "channels"])
def test_any_strides(made: Tensor) -> None:
    """What a state looks like in memory does not show."""
    items = synced_state(None, [made, made + 1], [made * 2], default=[])
    assert all(map(torch.equal, items, [made, made + 1, made * 2]))
    assert torch.equal(synced_state("sum", made, made + 1), made + (made + 1))


@pytest.mark.parametrize("lists", [False, True])
def test_gradients_survive(lists: bool) -> None:
    """States that hang on a graph are sent as numbers, and hang on it afterwards."""

    def work(comm: Any) -> Any:
        leaf = torch.full((2,), 1.0 + comm.rank, requires_grad=True)
        state = [leaf * 3, leaf * 4] if lists else leaf * 7
        metric = Holds("cat" if lists else "sum", [] if lists else 0.0)
        metric.update(state)
        value = sync_and_compute(metric, comm=comm)
        (value,) = value if lists else (value,)
        assert not value.requires_grad
        assert metric.state is state
        (torch.cat(metric.state) if lists else metric.state).sum().backward()
        return value.sum().item(), leaf.grad

    for value, grad in run(2, work):
        assert value == 7.0 * 2 * 3
        assert torch.equal(grad, torch.full((2,), 7.0))


@pytest.mark.parametrize("world_size", [1, 2])
def test_inference_mode_and_another_default_device(world_size: int) -> None:
    """What is put back must be updatable outside; what travels lies where the transport wants it, in any block."""

    def work(comm: Any) -> Any:
        metric, rows = aggregation.SumMetric(), Holds("cat", [])
        with torch.inference_mode():
            metric.update(torch.tensor(2.0))
            rows.update([torch.ones(1) * comm.rank])
            first = repr(sync_and_compute([metric, rows], comm=comm))
        with torch.device("meta"):
            value, items = sync_and_compute([metric, rows], comm=comm)
        assert repr([value, items]) == first
        metric.update(torch.tensor(1.0))
        ranks = torch.cat([item.reshape(-1) for item in items]).tolist()
        return ranks, float(sync_and_compute(metric, comm=comm))

    assert run(world_size, work) == [([*map(float, range(world_size))], 3.0 * world_size)] * world_size


# -- refused

REFUSED = {
    "sparse": ("sum", lambda: torch.eye(2).to_sparse(), "has the layout torch.sparse_coo"),
    "sparse rows": ("cat", lambda: [torch.eye(2).to_sparse()], "has the layout torch.sparse_coo"),
    "sparse items": (None, lambda: [torch.eye(2).to_sparse()], "has the layout torch.sparse_coo"),
    "meta": ("sum", lambda: torch.ones(2, device="meta"), "is on the meta device"),
    "meta items": (None, lambda: [torch.ones(2, device="meta")], "is on the meta device"),
    "max of complex": ("max", lambda: torch.tensor([1j, 2j]), "is complex64, of which torch has no max"),
    "sum of float8": ("sum", lambda: torch.ones(2).to(torch.float8_e4m3fn), "of which torch has no sum"),
    "sum of uint64": ("sum", lambda: torch.ones(2).to(torch.uint64), "is uint64, of which torch has no sum"),
    "number": ("sum", lambda: 3.0, "is a float; only tensors and lists can be synced"),
    "tuple": (None, lambda: (torch.ones(2),), "is a tuple; only tensors and lists can be synced"),
    "rows of two widths": ("cat", lambda: [torch.ones(2, 3), torch.ones(2, 4)], "the state odd.state cannot be sent"),
    "function": ("cat", lambda: [len], "allow_pickle=True"),
    "parameter": ("sum", lambda: nn.Parameter(torch.ones(2)), "of Holds is no plain attribute"),
    "quantized": ("cat", lambda: [torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)], "cannot be sent"),
}


@pytest.mark.filterwarnings("ignore:.*quantize")
@pytest.mark.parametrize(("kind", "ranks"), [*((kind, {1}) for kind in REFUSED), ("sparse", {0, 1, 2})])
def test_what_cannot_be_synced_is_refused_on_every_rank(kind: str, ranks: set[int]) -> None:
    """Told by name before data moves, also to ranks whose state is well; nothing is left out without a word."""
    reduction, make, text = REFUSED[kind]
    lists = isinstance(make(), list | tuple)

    def work(comm: Any) -> None:
        metric = Holds(reduction, [] if lists else 0.0)
        good = torch.ones(2, 2) if "rows" in kind or "items" in kind else torch.ones(2)
        metric.update(make() if comm.rank in ranks else [good] if lists else good)
        state = metric.state
        try:
            sync_and_compute({"odd": metric}, comm=comm)
        finally:
            assert metric.state is state

    error = same_error(outcomes(3, work), StateError)
    assert error.peers == tuple(sorted(ranks))
    assert "state " in str(error).partition("\n")[0]
    assert text in str(error)


def test_items_keep_their_dtype_their_shape_and_their_number() -> None:
    """Also those without elements, which are items still, and numbers, which a metric may count."""
    items = synced_state(None, *[[torch.ones(2), torch.ones(2).int()]] * 2, default=[])
    assert [item.dtype for item in items] == [torch.float32, torch.int32] * 2
    items = synced_state(None, [torch.ones(2, 4)], [torch.ones(0, 4)] * 2, default=[])
    assert [tuple(item.shape) for item in items] == [(2, 4), (0, 4), (0, 4)]
    assert synced_state("cat", torch.ones(2), torch.zeros(1)).tolist() == [1.0, 1.0, 0.0]  # tensors that grow
    assert synced_state(None, torch.tensor(1.0), torch.tensor(2.0)).tolist() == [1.0, 2.0]
    for parts in ([1.0, 2.0], [3.0]), ([1.0], [2.0, 3.0]), (None, [1.0, 2.0, 3.0]):
        items = synced_state("cat", *[part and [torch.tensor(x) for x in part] for part in parts], default=[])
        assert [(item.shape, float(item)) for item in items] == [((), 1.0), ((), 2.0), ((), 3.0)]
