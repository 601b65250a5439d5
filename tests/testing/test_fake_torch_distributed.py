"""torch.distributed on ranks that are threads: gloo's answers, gloo's refusals, and nothing left behind."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torchmetrics import SumMetric
from torchmetrics.classification import BinaryAUROC

import distmetrics
from distmetrics.comm.communicator import use
from distmetrics.errors import ConfigurationError, InputError, InputTypeError, MismatchError
from distmetrics.testing import outcomes, run
from distmetrics.testing.fake_torch_distributed import ANSWERS, Move, routed
from tests.backends import same_error
from tests.testing import programs

pytestmark = [
    # of the metric libraries that sync here
    pytest.mark.filterwarnings("ignore:Using a non-tuple sequence for multidimensional indexing"),
    pytest.mark.filterwarnings("ignore:The ``compute`` method of metric BinaryAUROC was called before"),
    pytest.mark.filterwarnings("ignore:Running .* on global rank"),
]


@pytest.fixture(scope="module")
def on_gloo() -> list[Any]:
    return run(3, programs.every_program, backend="gloo")


@pytest.mark.gloo
@pytest.mark.xdist_group("programs on gloo")
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_threads_answer_as_gloo_does(name: str, on_gloo: list[Any]) -> None:
    with routed():
        on_threads = run(3, programs.PROGRAMS[name])
    for rank, value in enumerate(on_threads):
        assert_same(value, on_gloo[rank][name])


def assert_same(one: Any, other: Any) -> None:
    """Compare nests of lists, dicts, tensors and plain values; sums of floats may differ in their last bits."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one.detach(), other.detach(), equal_nan=True)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, dict):
        assert_same([*one.items()], [*other.items()])
    else:
        assert one == other


def total(comm: Any, group: Any = None) -> int:
    x = torch.tensor(comm.rank)
    dist.all_reduce(x, group=group)
    return int(x)


def in_a_world_of_two(comm: Any) -> Any:
    """A subgroup in force is the world."""
    if comm.rank == 1:
        return None
    with use(comm.subgroup([0, 2])):
        return dist.get_rank(), dist.get_world_size(), total(comm)


def of_its_members_alone(comm: Any) -> Any:
    return comm.rank and total(comm, dist.new_group([1, 2], use_local_synchronization=True))


def of_a_metric(comm: Any) -> Any:
    """Which syncs in its group by itself, and by us."""
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    metric = SumMetric(process_group=groups[comm.rank // 2])
    metric.update(float(comm.rank))
    return float(distmetrics.sync_and_compute(metric)), float(metric.compute())


@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        (in_a_world_of_two, [(0, 2, 2), None, (1, 2, 2)]),
        (of_its_members_alone, [0, 3, 3]),
        (of_a_metric, [(1, 1), (1, 1), (2, 2)]),
    ],
)
def test_groups(work: Callable[[Any], Any], wanted: list[Any]) -> None:
    with routed():
        assert run(3, work) == wanted


def empty_auroc(rank: int) -> None:
    """A rank without data sends another dtype, on which gloo aborts."""
    metric = BinaryAUROC()
    if rank:
        metric.update(torch.tensor([0.1, 0.7]), torch.tensor([0, 1]))
    metric.compute()


DISAGREEMENTS: list[tuple[Callable[[int], Any], str]] = [
    (empty_auroc, "rank 0  torch.distributed.all_gather float32[2]"),
    (lambda rank: dist.all_reduce(torch.ones(2 + rank)), "all_reduce float32[3]"),
    (lambda rank: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM), "all_reduce"),
    (lambda rank: dist.gather(torch.ones(1), [torch.ones(1)] * 2, dst=rank), "gather"),
    (lambda rank: dist.reduce(torch.ones(1), dst=rank), "reduce"),
    (lambda rank: dist.broadcast(torch.ones(1), src=rank), "broadcast"),
    (lambda rank: dist.barrier() if rank else dist.all_reduce(torch.ones(1)), "barrier"),
    (lambda rank: dist.reduce(torch.ones(1), dst=0) if rank else dist.all_reduce(torch.ones(1)), "distributed.reduce"),
    (lambda rank: dist.broadcast_object_list([1] * (1 + rank), src=0), "broadcast_object_list"),
]


@pytest.mark.parametrize(("disagree", "named"), DISAGREEMENTS)
def test_ranks_that_disagree_are_told_so(disagree: Callable[[int], Any], named: str) -> None:
    """Those of a group by their numbers in the world."""

    def in_group(comm: Any) -> None:
        pair = dist.new_group([1, 2])
        if comm.rank:
            with use(pair.communicator):
                disagree(comm.rank - 1)

    with routed():
        error = same_error(outcomes(2, lambda comm: disagree(comm.rank)), MismatchError)
        in_a_group = outcomes(3, in_group)[1:]
    assert named in str(error)
    assert [each.error.peers for each in in_a_group] == [(1, 2)] * 2  # type: ignore[union-attr]


def strided() -> torch.Tensor:
    return torch.zeros(4, 2)[:, 0]


ONES, FOUR = torch.ones(2), torch.ones(4)
REFUSALS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: dist.all_gather([torch.ones(3)] * 2, FOUR), InputError, r"tensor_list\[0\] must be float32\[4\]"),
    (lambda: dist.all_gather([FOUR.int()] * 2, FOUR), InputError, r"got int32\[4\]"),
    (lambda: dist.all_gather([torch.ones(2, 2)] * 2, FOUR), InputError, r"got float32\[2, 2\]"),
    (lambda: dist.all_gather([FOUR] * 3, FOUR), InputError, "tensor_list has 3 tensors for 2 ranks"),
    (lambda: dist.all_gather((FOUR,) * 2, FOUR), InputTypeError, "must be a list of tensors"),  # type: ignore[arg-type]
    (lambda: dist.all_gather([None] * 2, FOUR), InputTypeError, "needs a tensor, got a NoneType"),  # type: ignore[list-item]
    (lambda: dist.barrier(group=object()), InputError, "got a object, and no group of this world"),  # type: ignore[arg-type]
    (lambda: dist.all_gather_into_tensor(torch.ones(2, 4), FOUR), InputError, r"must be float32\[8\]"),
    (lambda: dist.all_reduce([1]), InputTypeError, "all_reduce: needs a tensor, got a list"),
    (lambda: dist.all_reduce(strided()), InputError, "not contiguous; gloo would move the memory"),
    (lambda: dist.broadcast(strided(), 0), InputError, "not contiguous"),
    (lambda: dist.scatter(strided(), [FOUR] * 2), InputError, "not contiguous"),
    (lambda: dist.all_reduce(ONES.short()), InputError, "gloo cannot send torch.int16"),
    (lambda: dist.all_reduce(ONES.to(torch.float8_e4m3fn)), InputError, "gloo cannot send torch.float8"),
    (lambda: dist.all_reduce(torch.eye(2).to_sparse()), InputError, "layout torch.sparse_coo"),
    (lambda: dist.all_reduce(ONES, op="sum"), InputError, "op='sum' is not supported"),
    (
        lambda: dist.all_reduce(ONES.long(), op=dist.ReduceOp.AVG),
        InputError,
        "no ReduceOp.AVG of torch.int64",
    ),  # distlint: ignore[DL207] it is refused
    (lambda: dist.broadcast(ONES, 5), InputError, "src=5 is no rank of a world of 2"),
    (lambda: dist.broadcast(ONES), InputError, "src=None is no rank of a world of 2"),
    (lambda: dist.broadcast(ONES, src=0, group_src=0), InputError, "cannot both be given"),
    (lambda: dist.gather(ONES, None, dst=dist.get_rank()), InputError, "gather_list must be given on rank"),
    (lambda: dist.gather(ONES, [ONES] * 2, dst=1 - dist.get_rank()), InputError, "must not be given on rank"),
    (lambda: dist.all_to_all_single(ONES, ONES, [2, 0], [2, 0]), InputError, "splits of different sizes"),
    (lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)), InputError, "2 ranks can't share evenly"),
    (lambda: dist.send(ONES, 1), ConfigurationError, "torch.distributed.send is not supported in a world of"),
    (lambda: dist.new_subgroups(2), ConfigurationError, "new_subgroups is not supported"),
    (lambda: dist.new_group([0, 2]), InputError, r"ranks=\[0, 2\] are no ranks of a world of 2"),
    (lambda: dist.new_group([0, 0]), InputError, "each once"),
    (lambda: dist.broadcast(ONES, 3, dist.new_group([0, 1])), InputError, "src=3 is no rank"),
]


@pytest.mark.parametrize(("misuse", "kind", "text"), REFUSALS)
def test_misuse_is_refused_by_name(misuse: Callable[[], Any], kind: type[Exception], text: str) -> None:
    """On every rank alike, before anything is sent: the world still works."""

    def misused(comm: Any) -> None:
        with pytest.raises(kind, match=text):
            misuse()
        dist.barrier()

    with routed():
        run(2, misused)


def test_everything_is_put_back_by_the_last_block_that_ends() -> None:
    """Blocks may be nested, end by an error, and overlap on several threads."""
    before = {name: getattr(dist, name) for name in dir(dist)}
    inside, leave = threading.Barrier(3), threading.Event()

    def block() -> None:
        with routed(), routed():
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=block) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait()
    with contextlib.suppress(KeyError), routed():
        assert dist.all_gather.__wrapped__ is before["all_gather"], "wrapped once, however often"  # type: ignore[attr-defined]
        raise KeyError
    assert dist.all_gather is not before["all_gather"], "others are still inside"
    leave.set()
    for thread in threads:
        thread.join()
    assert {name: getattr(dist, name) for name in dir(dist)} == before


@pytest.mark.parametrize("name", [name for name, answer in ANSWERS.items() if isinstance(answer, Move)])
def test_moves_name_arguments_of_torch(name: str) -> None:
    """Else a call would fail with a KeyError, and no program of this file may make it."""
    move, theirs = ANSWERS[name], inspect.signature(getattr(dist, name)).parameters
    assert isinstance(move, Move)
    assert {move.sends, move.receives, "async_op"} <= set(theirs)
