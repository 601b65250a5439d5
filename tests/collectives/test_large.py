"""Large worlds: a hash says whether all agree, data is reduced, and only what differs is sent to everyone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import distmetrics as dm
from distmetrics.collectives import exchange
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.collectives import ranks
from tests.collectives.cases import CASES
from tests.metrics.samples import SAMPLES, batches
from tests.metrics.test_right import check, on_rank


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every world a large one."""
    monkeypatch.setattr(exchange, "LARGE_WORLD", 1)


@pytest.mark.usefixtures("small_is_large")
def test_every_operation() -> None:
    """The same answers by the other way."""
    run(3, ranks.everything)


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("name", CASES)
def test_every_disagreement(name: str) -> None:
    """A hash tells only that ranks differ: who, and in what, is told by the frames that follow."""
    case = CASES[name]
    ended = outcomes(3, case.call)
    assert [type(outcome.error) for outcome in ended] == [case.error] * 3
    assert len({str(outcome.error) for outcome in ended}) == 1
    assert {tuple(outcome.error.peers) for outcome in ended} == {case.peers}  # type: ignore[union-attr]


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.filterwarnings("ignore:Metric `.*` will save all targets")
@pytest.mark.parametrize("name", SAMPLES)
def test_every_metric(name: str) -> None:
    """Equal shards, whose headers are equal; uneven ones with an empty rank, whose are not."""
    data = batches(SAMPLES[name], 24, 1)
    for cuts in ([0, 8, 16, 24], [0, 0, 17, 24]):
        check(name, run(3, on_rank, name, data, cuts), data)


def test_bytes_do_not_grow_with_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reductions of a few bytes, where frames would be 4 MiB a rank."""
    monkeypatch.setattr(exchange, "LARGE_WORLD", 8)

    def work(comm: Any) -> Any:
        recording = RecordingCommunicator(comm)
        total = dm.all_reduce({"a": torch.ones(3, dtype=torch.float64)}, comm=recording)["a"][0].item()
        return total, [(call.op, call.nbytes) for call in recording.calls]

    wanted = (9.0, [("all_reduce max", 64), ("all_reduce sum", 24)])
    assert run(9, work) == [wanted] * 9
