"""Syncing metrics: local state is always put back, ranks that differ all hear of it, and the rounds are counted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torchmetrics as tm
from torch import nn
from torchmetrics import aggregation, classification, wrappers

from distmetrics import MismatchError, PeerLostError, StateError, sync_and_compute, synced
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import both_backends, same_error
from tests.metrics.samples import CLASSES, Items, collection, flat, same, scores, states


def updated(metric: Any, *batches: Any) -> Any:
    for batch in batches:
        metric.update(*batch) if isinstance(batch, tuple) else metric.update(batch)
    return metric


def on_rank(rank: int, n: int = 8) -> tuple[torch.Tensor, ...]:
    return scores(n, torch.Generator().manual_seed(rank))


class Stop(BaseException):
    """Like a KeyboardInterrupt: no ``except Exception`` may see it."""


class FailsToCompute(tm.Metric):
    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, x: Any) -> None:
        self.total = self.total + x  # type: ignore[has-type]

    def compute(self) -> Any:
        raise ZeroDivisionError("no positives")


class ClearsItself(Items):
    """Some metrics change or clear their state while they compute."""

    def compute(self) -> Any:
        total = sum(item.sum() for item in self.items)
        self.items.clear()
        return total


class AddsInPlace(tm.Metric):
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, x: float) -> None:
        self.total = self.total + x

    def compute(self) -> Any:
        return self.total.add_(1).clone()


# -- local state


@pytest.mark.parametrize("error", [ValueError, Stop, KeyboardInterrupt], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("world_size", [1, 3])
def test_local_state_is_back_whatever_is_raised_inside(world_size: int, error: type[BaseException]) -> None:
    """Also for errors that no handler of exceptions sees; and the metric goes on."""

    def work(comm: Any) -> float:
        metrics = nn.ModuleList([updated(collection(True), on_rank(comm.rank)), updated(Items(), torch.ones(3))])
        before = states(metrics)
        with pytest.raises(error), synced(metrics, comm=comm):
            raise error
        assert same(states(metrics), before)
        metrics[1].update(torch.ones(comm.rank))
        return float(sync_and_compute(metrics[1], comm=comm)[1])

    total = 3 * world_size + sum(range(world_size))
    assert run(world_size, work) == [total] * world_size


def test_local_state_is_back_when_computing_fails() -> None:
    """torchmetrics itself stays synced for ever then."""
    assert run(2, failing_compute) == [2.0, 2.0]


def failing_compute(comm: Any) -> float:
    metric = updated(FailsToCompute(), 1.0)
    before = states(nn.ModuleList([metric]))
    with pytest.raises(ZeroDivisionError, match="no positives"):
        sync_and_compute(metric, comm=comm)
    assert same(states(nn.ModuleList([metric])), before)
    with synced(metric, comm=comm):
        return float(metric.total)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(("make", "wanted"), [(ClearsItself, 1.0), (AddsInPlace, None)])
def test_metrics_that_change_their_state_while_they_compute(make: Any, wanted: Any, world_size: int) -> None:
    """Computing may change the state of all ranks; local state is not touched, in a world of one neither."""

    def work(comm: Any) -> Any:
        metric = updated(make(), torch.tensor(1.0))
        before = states(nn.ModuleList([metric]))
        values = [float(sync_and_compute(metric, comm=comm)) for _ in range(2)]
        assert same(states(nn.ModuleList([metric])), before)
        return values

    value = world_size * 1.0 if wanted else world_size + 1.0
    assert run(world_size, work) == [[value] * 2] * world_size


def test_a_cached_local_value_survives() -> None:
    """A value computed locally before the sync is still the local one after it."""

    def work(comm: Any) -> tuple[float, float, float]:
        metric = updated(aggregation.SumMetric(), 1.0 + comm.rank)
        local = float(metric.compute())
        return local, float(sync_and_compute(metric, comm=comm)), float(metric.compute())

    assert run(2, work) == [(1.0, 3.0, 1.0), (2.0, 3.0, 2.0)]


def test_forward_inside_is_refused() -> None:
    """Its update would be lost with the state of all ranks."""

    def work(comm: Any) -> None:
        metric = updated(aggregation.SumMetric(), 1.0)
        with synced(metric, comm=comm), pytest.raises(tm.utilities.exceptions.TorchMetricsUserError, match="synced"):
            metric(1.0)

    run(2, work)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_second_sync_inside_is_refused_on_every_rank(world_size: int) -> None:
    """It would count every rank once more, without a word."""

    def work(comm: Any) -> None:
        metric = updated(aggregation.SumMetric(), 1.0)
        with synced(metric, comm=comm):
            sync_and_compute({"total": metric}, comm=comm)

    for outcome in outcomes(world_size, work):
        assert isinstance(outcome.error, StateError)
        assert "the metric total holds the state of all ranks already" in str(outcome.error)


def test_a_metric_that_is_synced_on_one_rank_alone() -> None:
    """The others must not wait for a rank that refuses."""

    def work(comm: Any) -> None:
        metric = updated(aggregation.SumMetric(), 1.0)
        metric._is_synced = comm.rank == 1
        sync_and_compute(metric, comm=comm)

    assert same_error(outcomes(3, work), StateError).peers == (1,)


# -- ranks that differ


def other_metric(comm: Any) -> Any:
    return updated(aggregation.MeanMetric() if comm.rank == 1 else aggregation.SumMetric(), 1.0)


def other_classes(comm: Any) -> Any:
    labels = on_rank(0)[1]
    return updated(classification.MulticlassConfusionMatrix(CLASSES + (comm.rank == 1)), (labels, labels))


def other_classes_without_data(comm: Any) -> Any:
    return other_classes(comm) if comm.rank == 0 else classification.MulticlassConfusionMatrix(CLASSES + comm.rank % 2)


def other_keys(comm: Any) -> Any:
    return {"f1" if comm.rank == 1 else "loss": updated(aggregation.SumMetric(), 1.0)}


def other_number(comm: Any) -> Any:
    return [updated(aggregation.SumMetric(), 1.0) for _ in range(1 + (comm.rank == 1))]


def other_thresholds(comm: Any) -> Any:
    return classification.BinaryAUROC(thresholds=None if comm.rank == 1 else 5)


def other_width(comm: Any) -> Any:
    return updated(aggregation.CatMetric(), torch.ones(2, 3 + (comm.rank == 1)))


def sync_different(comm: Any, make: Any) -> Any:
    metrics = make(comm)
    modules = nn.ModuleList(
        [metrics] if isinstance(metrics, nn.Module) else metrics.values() if isinstance(metrics, dict) else metrics
    )
    before = states(modules)
    try:
        sync_and_compute(metrics, comm=comm, name="val")
    finally:
        assert same(states(modules), before)


DIFFERENT = [
    other_metric,
    other_classes,
    other_classes_without_data,
    other_keys,
    other_number,
    other_thresholds,
    other_width,
]


@pytest.mark.parametrize("make", DIFFERENT, ids=lambda make: make.__name__)
def test_different_metrics_are_refused_on_every_rank(make: Any) -> None:
    """Before anything is summed into something else; local state as before."""
    error = same_error(outcomes(3, sync_different, make), MismatchError)
    assert 'sync of metrics "val"' in str(error)
    assert 1 in error.peers


def on_process(comm: Any) -> Any:
    texts = []
    for make in DIFFERENT:
        with pytest.raises(MismatchError) as caught:
            sync_different(comm, make)
        texts.append(str(caught.value))
    return texts, failing_compute(comm), [large_matrix(comm, empty) for empty in (None, 0)]


@pytest.mark.gloo
def test_real_processes_do_the_same_with_the_same_words() -> None:
    """Metrics that differ, a compute that fails, matrices too large to gather: one world, in step after each."""
    assert run(3, on_process, backend="gloo") == run(3, on_process)


def test_the_text_of_different_arguments() -> None:
    """Pinned."""
    text = str(same_error(outcomes(2, sync_different, other_classes), MismatchError))
    head = 'ranks disagree on sync of metrics "val": rank 1 sends MulticlassConfusionMatrix(confmat sum[5, 5], '
    assert text.startswith(
        head + "num_classes=5), rank 0 sends MulticlassConfusionMatrix(confmat sum[4, 4], num_classes=4)\n"
    )
    assert "Likely: a key or an element that only some ranks have, or metrics made with different arguments." in text


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_text_of_a_key_that_only_some_ranks_have(world_size: int) -> None:
    """With a hundred keys that all have: who has it."""

    def work(comm: Any) -> Any:
        metrics = {f"subset {number}": aggregation.SumMetric() for number in range(100)}
        if comm.rank == 0:
            metrics |= {"code": collection(True)}
        return sync_and_compute(metrics, comm=comm)

    error = same_error(outcomes(world_size, work), MismatchError)
    assert "code" in error.what


def test_a_rank_that_raises_before_the_sync() -> None:
    """The others are told, and keep their local state."""

    def work(comm: Any) -> None:
        metric = updated(aggregation.SumMetric(), 1.0)
        if comm.rank == 2:
            raise OSError("disk full")
        before = states(nn.ModuleList([metric]))
        try:
            sync_and_compute(metric, comm=comm)  # distlint: ignore[DL101] that the others hear of it is what is tested
        finally:
            assert same(states(nn.ModuleList([metric])), before)

    ended = outcomes(3, work)
    assert [type(outcome.error) for outcome in ended] == [PeerLostError, PeerLostError, OSError]


def test_a_state_that_cannot_be_sent_is_refused_on_every_rank() -> None:
    """Rows of different width in one list, an object that does not pickle, a state of no known kind."""

    def wide(metric: Any) -> None:
        metric.value.append(torch.ones(2, 4))

    def unpicklable(metric: Any) -> None:
        metric.value.append(lambda: None)

    def number(metric: Any) -> None:
        metric.value = 3.0

    for spoil in (wide, unpicklable, number):

        def work(comm: Any, spoil: Any = spoil) -> None:
            metric = updated(aggregation.CatMetric(), torch.ones(2, 3))
            if comm.rank == 1:
                spoil(metric)
            sync_and_compute(metric, comm=comm)

        assert same_error(outcomes(3, work), StateError).peers == (1,)


# -- shapes of input


def test_the_result_has_the_form_of_the_input() -> None:
    """Mappings, sequences, modules, nested; the same metric twice is synced once."""

    def work(comm: Any) -> Any:
        total = updated(aggregation.SumMetric(), 1.0 + comm.rank)
        high = updated(aggregation.MaxMetric(), float(comm.rank))
        module = nn.Module()
        module.total, module.inner = total, nn.ModuleDict({"high": high})
        return [
            sync_and_compute(form, comm=comm)
            for form in (
                total,
                {"b": total, "a": [high, total]},
                (total, high),
                nn.ModuleList([high]),
                module.inner,
                module,
            )
        ]

    three, one = torch.tensor(3.0), torch.tensor(1.0)
    wanted = [
        three,
        {"b": three, "a": [one, three]},
        [three, one],
        [one],
        {"high": one},
        {"total": three, "inner.high": one},
    ]
    assert run(2, work) == [wanted, wanted]


def test_order_of_keys_is_each_ranks_own() -> None:
    """Ranks may fill a dict in different order; values must not be swapped."""

    def work(comm: Any) -> Any:
        made = {"a": updated(aggregation.SumMetric(), 1.0), "b": updated(aggregation.SumMetric(), 10.0)}
        metrics = dict(reversed(made.items())) if comm.rank else made
        return {key: float(value) for key, value in sync_and_compute(metrics, comm=comm).items()}

    got = run(2, work)
    assert got == [{"a": 2.0, "b": 20.0}] * 2
    assert [list(result) for result in got] == [["a", "b"], ["b", "a"]]


@pytest.mark.parametrize("keys", [("a.b", "a"), (1, "1")])
def test_metrics_whose_paths_read_alike_keep_apart(keys: tuple[Any, Any]) -> None:
    """``{"a.b": …}`` and ``{"a": {"b": …}}``; 1 and "1"; filled in any order."""

    def work(comm: Any) -> Any:
        one, ten = updated(aggregation.SumMetric(), 1.0), updated(aggregation.SumMetric(), 10.0)
        items = [(keys[0], one), (keys[1], {"b": ten})]
        values = sync_and_compute(dict(reversed(items) if comm.rank else items), comm=comm)
        return float(values[keys[0]]), float(values[keys[1]]["b"])

    assert run(2, work) == [(2.0, 20.0)] * 2


def test_what_is_no_metric_is_left_alone_or_refused() -> None:
    """Beside a metric a note is a note; without any metric there is nothing to sync."""
    total = updated(aggregation.SumMetric(), 1.0)
    assert sync_and_compute({"total": total, "note": "text", "none": None}) == {
        "total": 1.0,
        "note": "text",
        "none": None,
    }
    for nothing in ("text", {}, [], nn.Linear(1, 1), 3.0):
        with pytest.raises(StateError, match="holds no metric that distmetrics knows"):
            sync_and_compute(nothing)


def test_state_that_was_loaded_counts_without_an_update() -> None:
    """A metric restored from a checkpoint has data, and no update."""

    def work(comm: Any) -> float:
        metric = aggregation.SumMetric()
        if comm.rank == 0:
            metric.persistent(True)
            metric.load_state_dict({"sum_value": torch.tensor(5.0)})
        else:
            metric.update(1.0)
        return float(sync_and_compute(metric, comm=comm))

    assert run(2, work) == [6.0, 6.0]


# -- compute groups, sizes, rounds


@pytest.mark.parametrize("empty", [None, 0, 1])
def test_compute_groups_with_ranks_that_have_formed_none(empty: int | None) -> None:
    """A group is formed by the first batch that a rank saw; a rank without data has formed none."""
    parts = [() if rank == empty else (on_rank(rank),) for rank in range(2)]

    def work(comm: Any) -> Any:
        metrics = updated(collection(True), *parts[comm.rank])
        first = sync_and_compute(metrics, comm=comm)
        metrics.update(*on_rank(7))  # the groups work on
        return first, sync_and_compute(metrics, comm=comm)

    whole = updated(collection(False), *(batch for part in parts for batch in part))
    for first, second in run(2, work):
        for name, value in whole.compute().items():
            torch.testing.assert_close(first[name], value)
        more = updated(collection(False), *(b for part in parts for b in part), on_rank(7), on_rank(7)).compute()
        for name, value in more.items():
            torch.testing.assert_close(second[name], value)


def test_members_of_a_group_travel_once() -> None:
    """They share their state, so sending it for each would be waste; without groups it is sent for each."""

    def work(comm: Any) -> list[int]:
        sizes = []
        for groups in (True, False):
            with synced(updated(collection(groups), on_rank(comm.rank)), comm=comm) as plan:
                assert plan is not None
                sizes.append(plan.sent[comm.rank].inline.layout.nbytes)
        return sizes

    for with_groups, without in run(2, work):
        assert with_groups < without


@pytest.mark.parametrize("empty", [None, 0])
def test_a_large_confusion_matrix_is_reduced_by_the_transport(empty: int | None) -> None:
    """8 MB would be gathered W times; all_reduce moves it once, with a rank without data too."""
    assert run(3, large_matrix, empty) == [["all_gather", "all_reduce sum"]] * 3


def large_matrix(comm: Any, empty: int | None) -> list[str]:
    metric = classification.MulticlassConfusionMatrix(1000)
    data = [torch.randint(0, 1000, (2, 500), generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    if comm.rank != empty:
        metric.update(*data[comm.rank])
    record = RecordingCommunicator(comm)
    value = sync_and_compute(metric, comm=record)
    whole = classification.MulticlassConfusionMatrix(1000, sync_on_compute=False)
    for rank in range(3):
        if rank != empty:
            whole.update(*data[rank])
    assert torch.equal(value, whole.compute())
    return [call.op for call in record.calls]


@pytest.mark.filterwarnings("ignore:.*will save all")
@pytest.mark.parametrize("long", [0, 1, 10_000])
@pytest.mark.parametrize("count", [1, 20, 500])
def test_rounds_do_not_depend_on_the_number_of_metrics(count: int, long: int) -> None:
    """One, and one more with long lists; of 500 metrics the manifest fits into the first round only compressed."""

    def work(comm: Any) -> tuple[int, list[float]]:
        metrics = []
        for index in range(count):
            metric = aggregation.CatMetric() if long else aggregation.SumMetric()
            metric.update(torch.full((long or 1,), float(index + comm.rank)))
            metrics.append(metric)
        record = RecordingCommunicator(comm)
        values = sync_and_compute(metrics, comm=record)
        return len(record.calls), [float(value.sum()) for value in values]

    wanted = [float((2 * index + 1) * (long or 1)) for index in range(count)]
    assert run(2, work) == [(2 if long > 1 else 1, wanted)] * 2


def test_items_without_elements_are_items_still() -> None:
    """An image without a detection is an image; a rank that saw only such must not drop out of the lists."""

    class Shapes(Items):
        def compute(self) -> Any:
            return [tuple(item.shape) for item in self.items]

    def work(comm: Any) -> Any:
        return sync_and_compute(
            updated(Shapes(), *([torch.ones(2, 4)] if comm.rank == 0 else [torch.ones(0, 4)] * 2)), comm=comm
        )

    assert run(3, work) == [[(2, 4), *[(0, 4)] * 4]] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_states_keep_their_dtype_and_are_folded_wide(dtype: torch.dtype) -> None:
    """256 + 1 is 256 in bfloat16: the ranks after the first must count all the same."""

    def work(comm: Any) -> Any:
        metric = aggregation.SumMetric().set_dtype(dtype)
        value = torch.tensor(256.0 if comm.rank == 0 else 1.0, dtype=dtype)
        metric.update(value)
        return sync_and_compute(metric, comm=comm)

    assert run(5, work) == [torch.tensor(260.0, dtype=dtype)] * 5


def test_a_tracker_computes_its_latest_step() -> None:
    """It is a list of metrics to Python; to its user it is one metric."""

    def work(comm: Any) -> float:
        tracker = wrappers.MetricTracker(aggregation.SumMetric(), maximize=True)
        for value in (1.0, 5.0):
            tracker.increment()
            tracker.update(value + comm.rank)
        return float(sync_and_compute(tracker, comm=comm))

    assert run(2, work) == [11.0] * 2


def test_a_metric_updated_in_inference_mode_goes_on() -> None:
    """Evaluation loops run in it; what is put back must be updatable outside."""

    def work(comm: Any) -> list[float]:
        metric = aggregation.SumMetric()
        with torch.inference_mode():
            metric.update(torch.tensor(2.0))
            first = float(sync_and_compute(metric, comm=comm))
        metric.update(torch.tensor(1.0))
        return [first, float(sync_and_compute(metric, comm=comm))]

    assert run(2, work) == [[4.0, 6.0]] * 2


def test_a_subgroup_syncs_by_itself() -> None:
    """Ranks 0 and 1 together, rank 2 alone."""

    def work(comm: Any) -> float:
        group = comm.subgroup([0, 1] if comm.rank < 2 else [2])
        return float(sync_and_compute(updated(aggregation.SumMetric(), 1.0 + comm.rank), comm=group))

    assert run(3, work) == [3.0, 3.0, 3.0]


def test_copies_made_inside_hold_the_state_of_all_ranks() -> None:
    """A collection with groups can be copied and pickled while it is synced, to be looked at later."""

    def work(comm: Any) -> Any:
        metrics = updated(collection(True), on_rank(comm.rank))
        with synced(metrics, comm=comm):
            kept = copy.deepcopy(metrics)
        return {key: float(value.sum()) for key, value in kept.compute().items()}, {
            key: float(value.sum()) for key, value in sync_and_compute(metrics, comm=comm).items()
        }

    for kept, synced_again in run(2, work):
        assert kept == synced_again


def test_wrappers_that_reset_their_child_while_they_compute() -> None:
    """Local state is not what they reset."""

    def work(comm: Any) -> Any:
        metric = wrappers.Running(aggregation.SumMetric(), window=2)
        for value in (1.0, 2.0, 4.0):
            metric.update(torch.tensor(value + comm.rank))
        before = states(nn.ModuleList([metric]))
        got = float(sync_and_compute(metric, comm=comm))
        assert same(states(nn.ModuleList([metric])), before)
        return got

    assert run(1, work) == [6.0]
    assert run(2, work) == [14.0] * 2


@both_backends
def test_a_rank_without_metrics_is_refused_on_every_rank(backend: str) -> None:
    """It takes part in the round, so the others raise too; the next sync then pairs with the next sync."""
    ended = outcomes(2, ranks_without_metrics, backend=backend)  # type: ignore[arg-type]
    assert [outcome.error for outcome in ended] == [None, None]
    (zero, one) = (outcome.value for outcome in ended)
    assert "a dict holds no metric that distmetrics knows (rank 0)" in zero[0]
    assert zero == one
    assert zero[1] == 3.0


def ranks_without_metrics(comm: Any) -> tuple[str, float]:
    metric = updated(aggregation.SumMetric(), 1.0 + comm.rank)
    try:
        sync_and_compute({"a": metric} if comm.rank else {}, comm=comm)
    except StateError as error:
        text = str(error)
    return text, float(sync_and_compute({"a": metric}, comm=comm)["a"])


def test_numbers_in_a_list_are_numbers_still() -> None:
    """ExtendedEditDistance averages its list by sum and length: one tensor in it would be one number."""
    from torchmetrics.text import ExtendedEditDistance

    texts = [("this is it", "this is that"), ("a cat", "a dog"), ("so long", "so far away"), ("one", "one")]

    def work(comm: Any, cut: int, sentences: bool) -> Any:
        metric = ExtendedEditDistance(return_sentence_level_score=sentences)
        for hypothesis, reference in texts[:cut] if comm.rank == 0 else texts[cut:]:
            metric.update([hypothesis], [reference])
        return flat(sync_and_compute(metric, comm=comm))

    for sentences in (False, True):
        metric = ExtendedEditDistance(return_sentence_level_score=sentences)
        for hypothesis, reference in texts:
            metric.update([hypothesis], [reference])
        for cut in (0, 1, 2, 4):
            for values in run(2, work, cut, sentences):
                for value, wanted in zip(values, flat(metric.compute()), strict=True):
                    torch.testing.assert_close(value, wanted)


@pytest.mark.parametrize("normalization", ["mean", "range", "std", "l2"])
def test_a_metric_that_cannot_merge_three_ranks_says_so(normalization: Any) -> None:
    """torchmetrics' own fault, named on every rank; two ranks are right, and so are three of which one has no data."""
    from torchmetrics.regression import NormalizedRootMeanSquaredError

    target = torch.arange(12.0)

    def make() -> Any:
        return NormalizedRootMeanSquaredError(normalization=normalization)

    def work(comm: Any, cuts: list[int]) -> torch.Tensor:
        metric, part = make(), slice(cuts[comm.rank], cuts[comm.rank + 1])
        if part.start < part.stop:
            metric.update(target[part] + 0.5, target[part])
        return sync_and_compute(metric, comm=comm)  # type: ignore[no-any-return]

    single = make()
    single.update(target + 0.5, target)
    for cuts in ([0, 5, 12], [0, 5, 5, 12], [0, 0, 12, 12]):
        for value in run(len(cuts) - 1, work, cuts):
            torch.testing.assert_close(value, single.compute(), rtol=1e-5, atol=1e-6)
    ended = outcomes(3, work, [0, 3, 7, 12])
    assert [type(outcome.error) for outcome in ended] == [StateError] * 3
    assert "cannot merge the data of 3 ranks" in str(ended[0].error)
