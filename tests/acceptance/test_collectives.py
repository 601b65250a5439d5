from __future__ import annotations

import importlib
import itertools
import math
import operator
import signal
import time
from collections import namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import make_dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import distmetrics as dm
from distmetrics import InputError, InputTypeError, MismatchError
from distmetrics.testing import run

X, NAN = torch.ones(2), math.nan
Box, Pair = make_dataclass("Box", ["inner"]), namedtuple("Pair", "left right")


def passing(op: str) -> Any:
    def call(self: Counting, *args: Any) -> Any:
        self.sent.append((op, sum(x.nbytes for x in args[:1] if isinstance(x, torch.Tensor))))
        return self.hear(getattr(self.inner, op)(*args))

    return call


class Counting(dm.Communicator):
    """A communicator of one's own: passes five collectives on, and counts what they send."""

    def __init__(self, inner: Any, hear: Any = lambda result: result) -> None:
        super().__init__()
        self.inner, self.hear, self.sent = inner, hear, []

    rank, world_size = (property(operator.attrgetter(f"inner.{x}")) for x in ("rank", "world_size"))
    device, barrier, broadcast = torch.device("cpu"), passing("barrier"), passing("broadcast")
    all_gather, all_reduce, all_to_all = map(passing, ("all_gather", "all_reduce", "all_to_all"))


def caught(call: Any, *args: Any, **options: Any) -> Any:
    """Return the error of ours that a call raises, else what it returns."""
    try:
        return call(*args, **options)
    except dm.DistmetricsError as error:
        return error


def told(comm: Any, faults: Any) -> Iterator[Any]:
    """Yield the error of each fault, which is the same on every rank."""
    for kind, phrase, call in faults:
        error = caught(call, comm)
        assert type(error) is kind, (phrase, error)
        assert (error.rank, phrase in str(error)) == (comm.rank, True), (phrase, error)
        assert dm.all_gather_object(str(error), comm=comm) == [str(error)] * comm.world_size
        yield error


def on_ranks(*sizes: int, backends: Any = ("threads", "gloo")) -> Any:
    """Make a test of what each rank of worlds does."""

    def decorate(body: Any) -> Any:
        def test() -> None:
            for size, backend in itertools.product(sizes, backends):
                run(size, body_of, body.__module__, body.__name__, backend=backend)

        test.body = body
        return pytest.mark.gloo(test)

    return decorate


def body_of(comm: Any, module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name).body(comm)


def leaves_of(rank: int) -> list[torch.Tensor]:
    base = torch.arange(6).reshape(2, 3) + rank
    dtypes = (torch.bool, torch.uint8, torch.bfloat16, torch.float64, torch.complex64)
    odd_memory = [base.T, base[:, ::2], base[0, 0], torch.empty(0, 2)]
    return [*odd_memory, *map(base.to, dtypes), torch.ones(2, requires_grad=True) * rank]


@on_ranks(3)
def test_gathers_bring_each_leaf_of_every_rank_in_order(comm: Any) -> None:
    mine, everyone = leaves_of(comm.rank), [leaves_of(rank) for rank in range(3)]
    for call, expected in {
        dm.all_gather: torch.stack,
        dm.all_gather_cat: lambda leaves: torch.cat([*map(torch.atleast_1d, leaves)]),
        (lambda tree: dm.broadcast(tree, src=1)): operator.itemgetter(1),
    }.items():
        got = call({"box": Box(Pair(mine, [])), 3: (None, {})})
        assert (type(got["box"]), type(got["box"].inner), got[3]) == (Box, Pair, (None, {}))
        for x, *leaves in zip(got["box"].inner[0], *everyone, strict=True):
            assert (x.dtype, x.requires_grad) == (leaves[0].dtype, False)
            assert torch.equal(x, expected(leaves))
            x.fill_(1)  # is memory of its own
    assert all(map(torch.equal, mine, everyone[comm.rank]))
    rows = torch.arange(comm.rank * 2.0).reshape(-1, 2) if comm.rank else torch.empty(0)
    assert dm.all_gather_cat(rows).tolist() == [[0, 1], [0, 1], [2, 3]]
    assert [x.tolist() for x in dm.all_gather([comm.rank, 0.5])] == [[0, 1, 2], [0.5] * 3]
    assert (dm.all_true(comm.rank != 1), dm.any_true(comm.rank == 1)) == (False, True)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    stack = dm.all_gather({"x": x * (comm.rank + 1)}, sync_grads=True)["x"]
    ((comm.rank + 1) * (stack**2).sum()).backward()  # to x from all ranks' losses
    assert x.grad.tolist() == [12.0 * (comm.rank + 1) ** 2, 24.0 * (comm.rank + 1) ** 2]


@on_ranks(3)
def test_reductions_and_weighted_means_lose_nothing(comm: Any) -> None:
    folds = {"sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin}
    for length, (op, fold) in itertools.product((4, 20_000), folds.items()):
        everyone = torch.arange(1.0, 3 * length + 1).reshape(3, length) % 7
        for dtype in (torch.float32, torch.int32, torch.bfloat16):
            got = dm.all_reduce({"x": everyone[comm.rank].to(dtype)}, op)["x"]
            assert (got.dtype, got.tolist()) == (dtype, fold(everyone, 0).tolist()), op
        holed = everyone[comm.rank].index_fill(0, torch.tensor(0), 1 if comm.rank else NAN)
        assert dm.all_reduce(holed, op).isnan().nonzero().tolist() == [[0]], op
    assert int(dm.all_reduce(comm.rank > 0)) == 2  # bools are counted
    half = torch.tensor(1.0 if comm.rank else 256.0, dtype=torch.bfloat16)
    assert dm.all_reduce(half) == 258  # 256 + 1 is 256 in bfloat16
    assert isinstance(caught(dm.all_reduce, torch.tensor(100, dtype=torch.int8)), InputError)
    mine = torch.tensor([1.5, NAN, 4.0][comm.rank])
    mean = dm.mean([mine, comm.rank, mine.bfloat16()], weight=torch.tensor([4, 0, 1][comm.rank]))
    assert [float(x) for x in mean] == [2.0, pytest.approx(2 / 5), 2.0]  # (4 · 1.5 + 4) / 5
    assert [x.dtype for x in mean] == [torch.float32, torch.float64, torch.bfloat16]
    assert isinstance(caught(dm.mean, 1.0, weight=0), InputError)


@on_ranks(3)
def test_objects_travel_as_data_or_by_pickle_where_all_say_so(comm: Any) -> None:
    values = [{"a": [1, (2.5, None)], 3: {"x", b"\0"}}, torch.float16, -(2**70), torch.Size([2])]
    sent = [values, np.arange(4)[::2], torch.ones(comm.rank, requires_grad=True)]
    for rank, (got, array, tensor) in enumerate(dm.all_gather_object(sent)):
        assert (got, array.tolist()) == (values, [0, 2])
        assert (len(tensor), tensor.requires_grad) == (rank, False)
    assert dm.all_gather_object(Fraction(1, 2), allow_pickle=True) == [Fraction(1, 2)] * 3


# Rank 1 of three is the odd one: the error of all, a phrase of it, and what each rank does.
odd = lambda c, one, others: one if c.rank == 1 else others  # noqa: E731
FAULTS: list[Any] = [
    (MismatchError, "float64", lambda c: dm.all_reduce(X.to(odd(c, torch.float64, None)))),
    (MismatchError, "[3]", lambda c: dm.all_gather(torch.ones(odd(c, 3, 2)))),
    (MismatchError, "[3]", lambda c: dm.all_reduce(torch.ones(odd(c, 3, 2)))),
    (MismatchError, "[3]", lambda c: dm.broadcast(torch.ones(odd(c, 3, 2)), src=0)),
    (MismatchError, "'a'", lambda c: dm.all_gather(odd(c, {"a": X}, {"b": X}))),
    (MismatchError, "[2, 4]", lambda c: dm.all_gather_cat(torch.ones(2, odd(c, 4, 3)))),
    (MismatchError, "f1", lambda c: dm.mean(X, weight=1, name=odd(c, "f1", "loss"))),
    (MismatchError, "allow_pickle", lambda c: dm.all_gather_object(1, allow_pickle=c.rank == 1)),
    (InputTypeError, "a str", lambda c: dm.all_gather({"a": odd(c, "text", X)})),
    (InputTypeError, "allow_pickle=True", lambda c: dm.all_gather_object(odd(c, Box(1), 1))),
    (InputTypeError, "flag", lambda c: dm.all_true(odd(c, "yes", True))),
    (InputError, "mean(x, weight", lambda c: dm.all_reduce(X, odd(c, "mean", "sum"))),
    (InputError, "rank 3", lambda c: dm.broadcast(X, src=odd(c, 3, 0))),
    (InputError, "-1", lambda c: dm.mean(X, weight=odd(c, -1, 1))),
    (InputError, "nan", lambda c: dm.mean(X, weight=odd(c, NAN, 1))),
]


@on_ranks(3)
def test_a_fault_of_one_rank_is_one_error_on_every_rank(comm: Any) -> None:
    for error in told(comm, FAULTS):
        assert (error.peers, {*error.per_rank}) == ((1,), {0, 1, 2})
        assert all("test_collectives.py:" in done for done in error.per_rank.values())
        assert (error.site.file[-19:], type(error.code)) == ("test_collectives.py", str)


@on_ranks(2, backends=("threads",))
def test_what_is_no_frame_of_ours_is_a_mismatch(comm: Any) -> None:
    own = Counting(comm, lambda got: [got[0].random_(), *got[1:]]) if comm.rank else comm
    for call in (dm.all_gather, dm.all_gather_cat, dm.all_reduce, dm.all_gather_object):
        error = caught(call, X, comm=own)
        assert (type(error) is MismatchError) == (comm.rank == 1)
        assert comm.rank == 0 or "sent data that is no frame of distmetrics" in str(error)


@on_ranks(2, 9, 257, backends=("threads",))
def test_a_call_is_one_collective_and_large_data_takes_one_more(comm: Any) -> None:
    room = (28 << 10 if comm.world_size <= 8 else 12 << 10) // 4  # in float32
    small, large, own = torch.ones(room - 99), torch.ones(room + 1), Counting(comm)
    if comm.world_size > 256:  # hashes are compared, by some bytes that are reduced
        dm.all_reduce({"a": X, "b": 1}, comm=own)
        assert {op for op, _ in own.sent} == {"all_reduce"}
        assert sum(nbytes for _, nbytes in own.sent) < 200
        return
    for call, data, count, is_refused in [
        (dm.all_reduce, [X, X.double(), 1], 1, False),
        (dm.all_gather, {"a": small, "b": [1, True]}, 1, False),
        (dm.all_gather_cat, torch.ones(comm.rank, 3), 1, False),
        (dm.all_reduce, large[comm.rank :], 1, True),  # a disagreement: no data moves
        (lambda _, comm: dm.barrier(comm=comm), None, 1, False),
        (dm.all_reduce, large, 2, False),
    ]:
        own.sent.clear()
        ended = caught(call, data, comm=own)
        assert (len(own.sent), isinstance(ended, MismatchError)) == (count, is_refused)


@on_ranks(3, backends=("gloo",))
def test_calls_go_to_a_group_or_to_what_is_in_force(comm: Any) -> None:
    for whole in (init_device_mesh("cpu", (3,), mesh_dim_names=("all",)), None):
        assert dm.all_reduce(1, comm=dm.GroupCommunicator(whole)) == dm.current().world_size == 3
    assert dm.all_reduce(1, comm=dm.SingleCommunicator()) == 1
    assert dm.ThreadWorld(2).run(lambda two, x: int(dm.all_reduce(x, comm=two)), 3) == [6, 6]
    group = dist.new_group([0, 2])
    if comm.rank == 1:
        return
    assert "GroupCommunicator(group)" in str(caught(dm.barrier, comm=group))
    with dm.use(dm.GroupCommunicator(group)) as pair, ThreadPoolExecutor() as pool:
        assert (dm.current(), pair.rank) == (pair, comm.rank // 2)
        assert dm.all_reduce(comm.rank) == 2
        assert pool.submit(dm.current).result().world_size == 3  # for this thread alone
        error = caught(dm.all_gather, torch.ones(1 + comm.rank), name="val/f1")
    assert (error.rank, {*error.per_rank}, "val/f1" in str(error)) == (comm.rank, {0, 2}, True)


@on_ranks(2, backends=("gloo",))
def test_after_an_interrupted_call_every_rank_is_told(comm: Any) -> None:
    """Rank 1 leaves a call that waits for rank 0, by a timer of its own, and goes on."""
    apart = dist.new_group([0, 1])
    if comm.rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(ZeroDivisionError):
            dm.all_reduce(X)
    else:
        time.sleep(0.3)
        caught(dm.all_reduce, X)
    for error in [caught(dm.all_reduce, X) for _ in range(2)]:
        assert (type(error), error.rank, error.peers) == (dm.DivergedError, comm.rank, (1,))
        assert "ZeroDivisionError" in str(error)
        assert "test_collectives.py:" in str(error)
    assert dm.all_reduce(1, comm=dm.GroupCommunicator(apart)) == 2  # a new one goes on


@on_ranks(2, backends=("gloo",))
def test_a_second_thread_in_a_call_is_refused(comm: Any) -> None:
    """On rank 0, while its first thread waits for rank 1."""
    own = dm.GroupCommunicator(dist.new_group([0, 1]))
    with ThreadPoolExecutor() as pool:  # threads that take turns, or have groups of their own
        assert [pool.submit(dm.all_reduce, 1, comm=x).result() for x in (own, comm)] == [2, 2]
        time.sleep(0.4 * comm.rank)
        first = pool.submit(caught, dm.all_reduce, 1, comm=comm)
        time.sleep(0.1)
        if comm.rank == 0:
            error = caught(dm.all_reduce, 1, comm=comm)
            assert isinstance(error, dm.ConfigurationError)
            assert error.what.count("test_collectives.py:") == 2
        assert first.result() == 2
    assert isinstance(caught(dm.all_reduce, 1, comm=comm), dm.DivergedError)
