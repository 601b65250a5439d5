"""torcheval metrics: every rank gets the bits of one metric that merged the ranks' states in rank order."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, deque
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torchmetrics as tm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from distmetrics import MismatchError, StateError, explain, sync_and_compute, synced
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.metrics.adapters.torcheval import TorchevalAdapter
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import same_error
from tests.metrics.samples import flat, lists_follow
from tests.metrics.torcheval_samples import SAMPLES, UPDATES, Batch, batches, fed, te

# What the libraries say of a rank that computes without data, and what torch says of what torcheval uses.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
every_sample = pytest.mark.parametrize("name", SAMPLES)


def same(one: Any, other: Any) -> bool:
    """Bitwise, of equal types, whatever it is."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or one != one  # NaN


def attributes(metric: Any) -> dict[str, Any]:
    """Copy all that a metric holds; modules are compared as they are."""
    return {k: v if isinstance(v, nn.Module) else copy.deepcopy(v) for k, v in vars(metric).items() if not callable(v)}


def outcome(compute: Any) -> Any:
    """A value, or the kind of the metric's own error: some raise when there is no data."""
    try:
        return compute()
    except Exception as error:  # noqa: BLE001  (whatever the metric raises)
        return type(error).__name__


def merged(name: str, shards: list[list[Batch]]) -> Any:
    """Compute what one metric does that merged all ranks', as torcheval's own tests have it."""
    first, *others = [fed(name, shard) for shard in shards]
    for metric in (first, *others) if others else ():
        metric._prepare_for_merge_state()
    if others:
        first.merge_state(others)
    return outcome(first.compute)


def on_rank(comm: Any, name: str, counts: list[int]) -> tuple[Any, list[str]]:
    """Sync twice; nothing of the metric may have changed, and it must go on as if nothing had happened."""
    metric = fed(name, batches(name, counts)[comm.rank])
    before = attributes(metric)
    record = RecordingCommunicator(comm)
    value = outcome(lambda: sync_and_compute(metric, comm=record))
    assert same(attributes(metric), before)
    assert same(outcome(lambda: sync_and_compute(metric, comm=comm)), value)
    return value, [call.op for call in record.calls]


def check(name: str, counts: list[int], ranks: list[Any]) -> None:
    shards = batches(name, counts)
    wanted = merged(name, shards)
    for value, _ in ranks:
        assert same(value, wanted), f"{name} {counts}: {value} is not {wanted}"
    whole = outcome(lambda: fed(name, [batch for shard in shards for batch in shard]).compute())
    if SAMPLES[name].whole and not isinstance(whole, str):
        for got, single in zip(flat(ranks[0][0]), flat(whole), strict=True):
            torch.testing.assert_close(got, single, equal_nan=True)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@every_sample
def test_the_bits_of_one_metric_that_merged_all(name: str, world_size: int) -> None:
    """And within tolerance the value of one metric that saw all the data; one collective, or two if states follow."""
    for index, (kind, updates) in enumerate(UPDATES.items()):
        counts = updates(world_size)
        with lists_follow() if index % 2 else nullcontext():
            ranks = run(world_size, on_rank, name, counts)
        check(name, counts, ranks)
        assert [len(ops) for _, ops in ranks] == [(1 + index % 2) if world_size > 1 else 0] * world_size, kind


def test_there_are_enough_samples_and_they_compute() -> None:
    """At least 30 classes; a sample that always raised would compare errors with errors."""
    assert len({type(sample.make()) for sample in SAMPLES.values()}) >= 50
    for name in SAMPLES:
        assert not isinstance(merged(name, batches(name, [2, 2])), str), name


@pytest.mark.parametrize(
    "name", ["Mean", "BinaryAUROC", "WindowedBinaryAUROC", "R2Score", "dict, int and float states"]
)
@settings(max_examples=20, deadline=None)
@given(counts=st.lists(st.integers(0, 5), min_size=2, max_size=5))
def test_any_number_of_updates(name: str, counts: list[int]) -> None:
    """Windows overflow on some ranks and not on others; keys come on some ranks only."""
    check(name, counts, run(len(counts), on_rank, name, counts))


def all_on_rank(comm: Any, counts: list[int]) -> dict[str, Any]:
    return {name: on_rank(comm, name, counts) for name in SAMPLES}


@pytest.mark.gloo
@pytest.mark.parametrize("counts", [[2, 1], [0, 2, 1]], ids=str)
def test_real_processes_give_the_same_bits(counts: list[int]) -> None:
    """All samples in one start."""
    ranks = run(len(counts), all_on_rank, counts, backend="gloo")
    for name in SAMPLES:
        check(name, counts, [rank[name] for rank in ranks])


# -- together


def test_everything_together_in_one_collective() -> None:
    """All torcheval samples with torchmetrics ones in one dict; values are those of each alone."""
    counts = [2, 0, 1]

    def work(comm: Any) -> Any:
        metrics = {name: fed(name, batches(name, counts)[comm.rank]) for name in SAMPLES}
        ours = {"sum": tm.SumMetric(), "cat": tm.CatMetric(), "f1": tm.classification.BinaryF1Score()}
        ours["sum"].update(comm.rank + 1.0)
        if comm.rank:
            ours["cat"].update(torch.arange(comm.rank))
        record = RecordingCommunicator(comm)
        return sync_and_compute({"eval": metrics, "metrics": ours}, comm=record), len(record.calls)

    for values, rounds in run(3, work):
        assert rounds == 1  # lists of a few numbers ride along
        assert (values["metrics"]["sum"], values["metrics"]["cat"].tolist()) == (6.0, [0.0, 0.0, 1.0])
        for name in SAMPLES:
            assert same(values["eval"][name], merged(name, batches(name, counts))), name


def test_the_same_metric_twice_is_merged_once() -> None:
    def work(comm: Any) -> Any:
        total = te.Sum().update(torch.tensor(1.0))
        return sync_and_compute({"a": total, "b": [total]}, comm=comm)

    assert run(2, work) == [{"a": 2.0, "b": [2.0]}] * 2


def test_explain_knows_them() -> None:
    text = str(explain({"auroc": fed("BinaryAUROC", batches("BinaryAUROC", [3])[0])}, world_size=2))
    assert "1 collective," in text
    assert "shown as it is now: auroc.(state)" in text


# -- local state


@pytest.mark.parametrize("world_size", [1, 3])
def test_local_state_is_back_when_computing_raises(world_size: int) -> None:
    class Fails(te.Sum):
        def compute(self) -> Tensor:
            self.weighted_sum += 1  # changes what it sees, and fails
            self.found = True
            raise ZeroDivisionError("no positives")

    def work(comm: Any) -> Any:
        metric = Fails().update(torch.tensor(1.0 + comm.rank))
        before = attributes(metric)
        with pytest.raises(ZeroDivisionError, match="no positives"):
            sync_and_compute(metric, comm=comm)
        assert same(attributes(metric), before)
        with synced(metric, comm=comm):
            return float(metric.weighted_sum)

    assert run(world_size, work) == [world_size * (world_size + 1) / 2] * world_size


@pytest.mark.parametrize("world_size", [1, 2])
def test_updates_inside_are_lost_and_lists_keep_their_items(world_size: int) -> None:
    def work(comm: Any) -> Any:
        metric = fed("BinaryAUROC", batches("BinaryAUROC", [2, 2])[comm.rank])
        items = metric.inputs
        before = attributes(metric)
        with synced(metric, comm=comm):
            assert sum(map(torch.numel, metric.inputs)) == 12 * world_size
            metric.update(torch.rand(2), torch.tensor([0, 1]))
        assert metric.inputs is items
        assert same(attributes(metric), before)

    run(world_size, work)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_second_sync_inside_is_refused_on_every_rank(world_size: int) -> None:
    def work(comm: Any) -> None:
        metric = te.Sum().update(torch.tensor(1.0))
        with synced(metric, comm=comm):
            assert float(metric.compute()) == world_size
            sync_and_compute(metric, comm=comm)

    error = same_error(outcomes(world_size, work), StateError) if world_size > 1 else outcomes(1, work)[0].error
    assert "holds the state of all ranks already" in str(error)


def test_it_goes_on_after_a_sync() -> None:
    def work(comm: Any) -> Any:
        metric = te.WindowedMeanSquaredError(max_num_updates=3)
        seen = []
        for step in range(4):
            metric.update(torch.arange(3.0) + step, torch.ones(3) * comm.rank)
            seen.append(sync_and_compute(metric, comm=comm))
        return seen, metric.compute()

    alone = [te.WindowedMeanSquaredError(max_num_updates=3) for _ in range(2)]
    for step in range(4):
        for rank, metric in enumerate(alone):
            metric.update(torch.arange(3.0) + step, torch.ones(3) * rank)
        wanted = copy.deepcopy(alone[0]).merge_state([alone[1]]).compute()
        for seen, _ in run(2, work):
            assert same(seen[step], wanted)
    assert [same(local, metric.compute()) for (_, local), metric in zip(run(2, work), alone, strict=True)] == [True] * 2


# -- ranks that differ


class Unpicklable(te.Sum):
    def __init__(self) -> None:
        super().__init__()
        self._add_state("extra", 0)


DIFFERENT = {
    "class": lambda odd: te.Min() if odd else te.Max(),
    "number of classes": lambda odd: te.MulticlassConfusionMatrix(4 + odd),
    "average": lambda odd: te.MulticlassAccuracy(average="macro" if odd else None, num_classes=4),
    "threshold": lambda odd: te.BinaryAccuracy(threshold=0.7 if odd else 0.5),
    "thresholds": lambda odd: te.BinaryBinnedAUPRC(threshold=6 if odd else 5),
    "window": lambda odd: te.WindowedClickThroughRate(max_num_updates=3 + odd),
    "queries": lambda odd: te.RetrievalPrecision(num_queries=2 + odd),
    "tasks": lambda odd: te.BinaryAUROC(num_tasks=1 + odd),
    "key": lambda odd: {"loss" if odd else "f1": te.Sum()},
    "library": lambda odd: tm.SumMetric() if odd else te.Sum(),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_metrics_are_refused_on_every_rank(what: str) -> None:
    def work(comm: Any) -> None:
        sync_and_compute(DIFFERENT[what](comm.rank == 1), comm=comm, name="val")

    error = same_error(outcomes(3, work), MismatchError)
    assert error.peers == (1,)
    assert 'ranks disagree on sync of metrics "val"' in str(error)


def test_the_text_of_different_arguments() -> None:
    """Pinned."""

    def work(comm: Any) -> None:
        sync_and_compute(te.BinaryAccuracy(threshold=0.5 + comm.rank / 4), comm=comm)

    assert str(same_error(outcomes(2, work), MismatchError)).startswith(
        "ranks disagree on sync of metrics: "
        "rank 1 sends BinaryAccuracy(threshold=0.75, num_correct float32[], num_total float32[]), "
        "rank 0 sends BinaryAccuracy(threshold=0.5, num_correct float32[], num_total float32[])\n"
    )


def test_tensors_in_a_default_may_be_on_any_device() -> None:
    texts = []
    for device in ("cpu", "meta"):
        metric = te.Sum()
        metric._add_state("rows", [torch.zeros(2, device=device)])
        texts.append(TorchevalAdapter().signature(metric))
    assert texts == ["weighted_sum float64[], rows list[1]"] * 2


def test_a_state_that_cannot_be_pickled_is_refused_on_every_rank() -> None:
    def work(comm: Any) -> None:
        metric = Unpicklable()
        if comm.rank == 1:
            metric.extra = lambda: None
        sync_and_compute(metric, comm=comm)

    assert same_error(outcomes(3, work), StateError).peers == (1,)


# -- what travels


def test_freezing_keeps_everything() -> None:
    """Nested containers, numbers, tensors of any dtype and layout of memory."""
    shared = torch.arange(6).reshape(2, 3).t()
    value = {
        "deque": deque([1, 2], maxlen=3),
        "numbers": (1, 2.5, float("inf"), True, None, 2**70),
        3: [shared, shared, torch.tensor(1.0 + 2j), torch.zeros(0, 4), torch.tensor(True), torch.tensor(-0.0)],
        "half": torch.tensor([1.5], dtype=torch.bfloat16).expand(3).clone(),
        "kinds": [{1, "a"}, frozenset((b"\0", None)), Counter("aab"), OrderedDict(b=1, a=2), 2 - 1j, b"\xff"],
        "torch": (torch.Size([2, 3]), torch.bfloat16),
    }
    again = deserialize(serialize(value))
    assert again.pop("torch") == value["torch"]
    assert again.pop("kinds") == value.pop("kinds")
    assert type(value.pop("torch")[0]) is torch.Size
    assert torch.equal(again.pop("half"), value.pop("half"))  # numpy has no bfloat16
    assert same(again, value)
    assert again["deque"].maxlen == 3


def test_what_is_deserialized_has_memory_of_its_own() -> None:
    """And the run that it came from may start anywhere."""
    run = serialize([torch.arange(3.0, dtype=torch.float64), 7])
    odd = torch.cat([torch.zeros(3, dtype=torch.uint8), run])[3:]
    deserialize(run)[0].zero_()
    for run_of_bytes in (run, odd):
        assert same(deserialize(run_of_bytes), [torch.arange(3.0, dtype=torch.float64), 7])


def test_large_tensors_are_not_pickled() -> None:
    assert serialize([torch.zeros(1000)]).numel() < 4000 + 300
