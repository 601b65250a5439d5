"""torch.distributed on ranks that are threads: gloo's answers, gloo's refusals, and nothing left behind."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torchmetrics import SumMetric
from torchmetrics.classification import BinaryF1Score

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


def test_a_metric_syncs_itself() -> None:
    metric = BinaryF1Score()
    for rank in range(3):
        for batch in programs.batches(rank):
            metric.update(*batch)
    expected = metric.compute()
    with routed():
        assert [f1 for f1, _ in run(3, programs.torchmetrics_own)] == [expected] * 3
    alone = [f1 for f1, _ in run(3, programs.torchmetrics_own)]
    assert alone != [expected] * 3, "outside the block a thread is alone"


def test_a_filler_of_another_dtype_is_a_mismatch_and_no_abort() -> None:
    with routed():
        error = same_error(outcomes(3, programs.auroc_with_an_empty_rank), MismatchError)
    assert "rank 0     torch.distributed.all_gather float32[2]" in str(error)
    assert "ranks 1-2  torch.distributed.all_gather int64[2]" in str(error)


def test_a_subgroup_in_force_is_the_world() -> None:
    def inside(comm: Any) -> Any:
        if comm.rank == 1:
            return None
        with use(comm.subgroup([0, 2])):
            x = torch.tensor(comm.rank)
            dist.all_reduce(x)  # distlint: ignore[DL101] the world in force is without rank 1
            return dist.get_rank(), dist.get_world_size(), int(x)

    with routed():
        assert run(3, inside) == [(0, 2, 2), None, (1, 2, 2)]


def by_groups(comm: Any) -> Any:
    """Talk in groups that overlap, by numbers of the world and of the group."""
    pairs = [dist.new_group([0, 2]), dist.new_group([2, 1])]
    found: list[Any] = []
    for pair in pairs:
        found.append((dist.get_rank(pair), dist.get_world_size(pair)))
        x = torch.tensor(comm.rank)
        dist.all_reduce(x, group=pair)
        found.append(int(x))
        if dist.get_rank(pair) < 0:
            continue
        found += [dist.get_process_group_ranks(pair), dist.get_global_rank(pair, 1)]
        x = torch.tensor(comm.rank)
        dist.broadcast(x, src=2, group=pair)
        y = torch.tensor(comm.rank)
        dist.broadcast(y, group_src=0, group=pair)
        objects = [None, None]
        dist.all_gather_object(objects, comm.rank, group=pair)
        found += [int(x), int(y), objects, dist.get_group_rank(pair, 2)]
    own, every = dist.new_subgroups_by_enumeration([[0, 1], [2]])
    x = torch.tensor(comm.rank)
    dist.all_reduce(x, group=own)
    return found, int(x), len(every)


@pytest.mark.gloo
@pytest.mark.xdist_group("programs on gloo")
@pytest.mark.filterwarnings("ignore:Running .* on global rank")
def test_groups_answer_as_those_of_gloo_do() -> None:
    with routed():
        on_threads = run(3, by_groups)
    assert on_threads == run(3, by_groups, backend="gloo")


def test_a_group_that_only_its_members_make() -> None:
    def work(comm: Any) -> Any:
        if comm.rank == 0:
            return None
        pair = dist.new_group([1, 2], use_local_synchronization=True)
        x = torch.tensor(comm.rank)
        dist.all_reduce(x, group=pair)
        return int(x)

    with routed():
        assert run(3, work) == [None, 3, 3]


def test_subgroups_of_one_size() -> None:
    def work(comm: Any) -> Any:
        own, every = dist.new_subgroups(2)
        x = torch.tensor(comm.rank)
        dist.all_reduce(x, group=own)
        return int(x), dist.get_process_group_ranks(own), len(every)

    with routed():
        assert run(4, work) == [(1, [0, 1], 2), (1, [0, 1], 2), (5, [2, 3], 2), (5, [2, 3], 2)]


def test_a_metric_of_a_group_syncs_in_it() -> None:
    """By itself, and by us."""

    def work(comm: Any) -> Any:
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        metric = SumMetric(process_group=groups[comm.rank // 2])
        metric.update(float(comm.rank))
        ours = distmetrics.sync_and_compute(metric)
        return float(ours), float(metric.compute())

    with routed():
        assert run(4, work) == [(1, 1), (1, 1), (5, 5), (5, 5)]


def test_an_error_in_a_group_names_ranks_of_the_world() -> None:
    def work(comm: Any) -> Any:
        pair = dist.new_group([1, 2])
        if comm.rank:
            dist.all_reduce(torch.ones(comm.rank), group=pair)

    with routed():
        ended = outcomes(3, work)
    for one in ended[1:]:
        assert isinstance(one.error, MismatchError)
        assert one.error.peers == (1, 2)


DISAGREEMENTS: list[tuple[Callable[[int], Any], str]] = [
    (lambda rank: dist.all_reduce(torch.ones(2 + rank)), "all_reduce float32[3]"),
    (lambda rank: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM), "all_reduce"),
    (lambda rank: dist.gather(torch.ones(1), [torch.ones(1)] * 2, dst=rank), "gather"),
    (lambda rank: dist.reduce(torch.ones(1), dst=rank), "reduce"),
    (lambda rank: dist.broadcast(torch.ones(1), src=rank), "broadcast"),
    (lambda rank: dist.barrier() if rank else dist.all_reduce(torch.ones(1)), "barrier"),
    (
        lambda rank: dist.reduce(torch.ones(1), dst=0) if rank else dist.all_reduce(torch.ones(1)),
        "torch.distributed.reduce",
    ),
    (lambda rank: dist.broadcast_object_list([1] * (1 + rank), src=0), "broadcast_object_list"),
]


@pytest.mark.parametrize(("disagree", "named"), DISAGREEMENTS)
def test_ranks_that_disagree_are_told_so(disagree: Callable[[int], Any], named: str) -> None:
    with routed():
        error = same_error(outcomes(2, lambda comm: disagree(comm.rank)), MismatchError)
    assert named in str(error)


def strided() -> torch.Tensor:
    return torch.zeros(4, 2)[:, 0]


REFUSALS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: dist.all_gather([torch.ones(3)] * 2, torch.ones(4)), InputError, r"tensor_list\[0\] must be float32\[4\]"),
    (lambda: dist.all_gather([torch.ones(4).int()] * 2, torch.ones(4)), InputError, r"got int32\[4\]"),
    (lambda: dist.all_gather([torch.ones(2, 2)] * 2, torch.ones(4)), InputError, r"got float32\[2, 2\]"),
    (lambda: dist.all_gather([torch.ones(4)] * 3, torch.ones(4)), InputError, "tensor_list has 3 tensors for 2 ranks"),
    (lambda: dist.all_gather((torch.ones(4),) * 2, torch.ones(4)), InputTypeError, "must be a list of tensors"),  # type: ignore[arg-type]
    (lambda: dist.all_gather([None] * 2, torch.ones(4)), InputTypeError, "needs a tensor, got a NoneType"),  # type: ignore[list-item]
    (
        lambda: dist.all_gather([torch.ones(4)] * 2, torch.ones(4), group=object()),
        InputError,
        "got a object, and no group of this world",
    ),  # type: ignore[arg-type]
    (lambda: dist.all_gather_into_tensor(torch.ones(2, 4), torch.ones(4)), InputError, r"must be float32\[8\]"),
    (lambda: dist.all_reduce([1]), InputTypeError, "all_reduce: needs a tensor, got a list"),
    (lambda: dist.all_reduce(strided()), InputError, "not contiguous; gloo would move the memory"),
    (lambda: dist.broadcast(strided(), 0), InputError, "not contiguous"),
    (lambda: dist.scatter(strided(), [torch.ones(4)] * 2), InputError, "not contiguous"),
    (lambda: dist.all_reduce(torch.ones(2).short()), InputError, "gloo cannot send torch.int16"),
    (lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)), InputError, "gloo cannot send torch.float8"),
    (lambda: dist.all_reduce(torch.eye(2).to_sparse()), InputError, "layout torch.sparse_coo"),
    (lambda: dist.all_reduce(torch.ones(2), op="sum"), InputError, "op='sum' is not supported"),
    (
        lambda: dist.all_reduce(torch.ones(2).long(), op=dist.ReduceOp.AVG),  # distlint: ignore[DL207] it is refused
        InputError,
        "mean of torch.int64",
    ),
    (lambda: dist.broadcast(torch.ones(2), 5), InputError, "src=5 is no rank of a world of 2"),
    (lambda: dist.broadcast(torch.ones(2)), InputError, "broadcast: needs src=, a rank"),
    (lambda: dist.broadcast(torch.ones(2), src=0, group_src=0), InputError, "cannot both be given"),
    (lambda: dist.gather(torch.ones(1), None, dst=dist.get_rank()), InputError, "needed on the destination rank"),
    (
        lambda: dist.gather(torch.ones(1), [torch.ones(1)] * 2, dst=1 - dist.get_rank()),
        InputError,
        "only be given on the destination rank",
    ),
    (
        lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2), [2, 0], [2, 0]),
        InputError,
        "splits of different sizes",
    ),
    (lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)), InputError, "2 ranks can't share evenly"),
    (lambda: dist.scatter_object_list([], [1, 2], src=0), InputError, "room for one object"),
    (lambda: dist.send(torch.ones(1), 1), ConfigurationError, "torch.distributed.send is not supported in a world of"),
    (lambda: dist.new_group([0, 2]), InputError, r"ranks=\[0, 2\] are no ranks of a world of 2"),
    (lambda: dist.new_group([0, 0]), InputError, "each once"),
    (lambda: dist.new_subgroups(3), InputError, "group_size=3 does not divide a world of 2"),
    (lambda: dist.broadcast(torch.ones(2), 3, dist.new_group([0, 1])), InputError, "src=3 is no rank"),
    (lambda: dist.init_process_group("gloo"), ConfigurationError, "init_process_group is not supported"),
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


def test_everything_is_put_back() -> None:
    before = {name: getattr(dist, name) for name in dir(dist)}

    def nested() -> None:
        with routed():
            with routed():
                wrapped = dist.all_gather.__wrapped__  # type: ignore[attr-defined]
                assert wrapped is before["all_gather"], "wrapped once, however deep"
            assert dist.all_gather is not before["all_gather"], "the outer block still holds"
            raise KeyError

    with pytest.raises(KeyError):
        nested()
    assert {name: getattr(dist, name) for name in dir(dist)} == before


def test_blocks_of_several_threads_overlap() -> None:
    before = dist.all_reduce
    inside, leave = threading.Barrier(9), threading.Event()

    def block() -> None:
        with routed():
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=block) for _ in range(8)]
    for thread in threads:
        thread.start()
    inside.wait()
    assert dist.all_reduce is not before
    with routed():
        pass
    assert dist.all_reduce is not before, "others are still inside"
    leave.set()
    for thread in threads:
        thread.join()
    assert dist.all_reduce is before


@pytest.mark.parametrize("name", [name for name, answer in ANSWERS.items() if isinstance(answer, Move)])
def test_moves_name_arguments_of_torch(name: str) -> None:
    """Else a call would fail with a KeyError, and no program of this file may make it."""
    move, theirs = ANSWERS[name], inspect.signature(getattr(dist, name)).parameters
    assert isinstance(move, Move)
    assert {move.sends, move.receives, "async_op"} <= set(theirs)
