"""What of a metric travels, in how many rounds, and what counts as data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchmetrics import aggregation
from torchmetrics.regression import NormalizedRootMeanSquaredError

from distmetrics import StateError, sync_and_compute, synced
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import same_error
from tests.metrics.samples import collection, scores, updated


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


def test_members_of_a_group_travel_once() -> None:
    """They share their state, so sending it for each would be waste; without groups it is sent for each."""

    def work(comm: Any) -> list[int]:
        sizes = []
        for groups in (True, False):
            metrics = updated(collection(groups), scores(8, torch.Generator().manual_seed(comm.rank)))
            with synced(metrics, comm=comm) as plan:
                assert plan is not None
                sizes.append(plan.sent[comm.rank].inline.layout.nbytes)
        return sizes

    for with_groups, without in run(2, work):
        assert with_groups < without


@pytest.mark.filterwarnings("ignore:.*will save all")
@pytest.mark.parametrize(("count", "long"), [(500, 0), (20, 1), (20, 10_000)])
def test_rounds_do_not_depend_on_the_number_of_metrics(count: int, long: int) -> None:
    """One, and one more with long lists; of 500 metrics the header fits into the first round only compressed."""

    def work(comm: Any) -> tuple[int, list[float]]:
        kind: Any = aggregation.CatMetric if long else aggregation.SumMetric
        metrics = [updated(kind(), torch.full((long or 1,), float(index + comm.rank))) for index in range(count)]
        record = RecordingCommunicator(comm)
        values = sync_and_compute(metrics, comm=record)
        return len(record.calls), [float(value.sum()) for value in values]

    wanted = [float((2 * index + 1) * (long or 1)) for index in range(count)]
    assert run(2, work) == [(2 if long > 1 else 1, wanted)] * 2


def test_a_metric_that_cannot_merge_three_ranks_says_so() -> None:
    """torchmetrics' own fault, named on every rank; two ranks are right, and so are three of which one has no data."""
    target = torch.arange(12.0)

    def work(comm: Any, cuts: list[int]) -> torch.Tensor:
        metric, part = NormalizedRootMeanSquaredError("std"), slice(cuts[comm.rank], cuts[comm.rank + 1])
        if part.start < part.stop:
            metric.update(target[part] + 0.5, target[part])
        return sync_and_compute(metric, comm=comm)  # type: ignore[no-any-return]

    single = updated(NormalizedRootMeanSquaredError("std"), (target + 0.5, target))
    for cuts in ([0, 5, 12], [0, 5, 5, 12]):
        for value in run(len(cuts) - 1, work, cuts):
            torch.testing.assert_close(value, single.compute(), rtol=1e-5, atol=1e-6)
    ended = outcomes(3, work, [0, 3, 7, 12])
    assert [type(each.error) for each in ended] == [StateError] * 3
    assert "cannot merge the data of 3 ranks" in str(ended[0].error)


def test_a_metric_that_is_synced_on_one_rank_alone_is_refused_on_all() -> None:
    """The others must not wait for a rank that refuses."""

    def work(comm: Any) -> None:
        metric = updated(aggregation.SumMetric(), 1.0)
        metric._is_synced = comm.rank == 1
        sync_and_compute(metric, comm=comm)

    assert same_error(outcomes(3, work), StateError).peers == (1,)
