"""What only real processes show, and the acceptance tests do not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distmetrics import PeerLostError
from distmetrics.guard import use_settings
from distmetrics.testing import outcomes, run
from tests.guard import ranks

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]


def test_the_users_thread_never_touches_the_store() -> None:
    """The guard's one thread does, also where this rank waits."""
    (here, used), (there, _) = run(2, ranks.threads, backend="gloo")
    assert here == there == ["distmetrics guard"]
    assert used == {"distmetrics guard"}


def test_a_guard_that_is_off_has_no_thread() -> None:
    with use_settings(mode="off"):
        assert run(2, ranks.threads, backend="gloo") == [([], set())] * 2


def test_a_report_of_every_rank(tmp_path: Path) -> None:
    """Also of the one that did not raise: it was busy elsewhere, and its guard writes for it."""
    with use_settings(timeout=1.5, report=tmp_path):
        outcomes(2, ranks.one_is_busy, backend="gloo", limit=60)
    late, busy = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert (late["rank"], busy["rank"]) == (0, 1)
    assert late["error"]["kind"] == "DivergedError"
    assert busy["error"] is None
    assert "tests/guard/ranks.py" in busy["where"][0]
    assert "multiprocessing" not in str(busy["where"])
    last = late["calls"][-1]
    assert (last["op"], last["ended"], last["group"]) == ('all_reduce sum "sum 1"', None, "world")
    assert busy["calls"][-1]["op"] == 'all_reduce sum "sum 0"'


def test_a_rank_that_is_ended_by_who_started_it_reports_before(tmp_path: Path) -> None:
    """It is busy, and is no rank of which the error speaks."""
    with use_settings(report=tmp_path):
        outcomes(3, ranks.one_raises_beside_a_busy_one, backend="gloo", limit=60)
    raised, busy = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (1, 2))
    assert raised["error"]["kind"] == "ValueError"
    assert busy["error"] is None
    assert "tests/guard/ranks.py" in busy["where"][0]


def test_watched_collectives_that_torch_makes_in_other_ways() -> None:
    """Uneven ones; objects; inside torch's coalescing manager a call has no work of its own to wait for."""
    first, second = run(2, ranks.watched, backend="gloo", limit=60)
    assert first == [[0, 1], [0, 0, 1], 2.0, 2.0, [2.0, 2.0]]
    assert second == [[0, 1], [1, 2, 3], 2.0, 2.0, [2.0, 2.0]]


def test_a_rank_that_never_comes_to_a_watched_collective() -> None:
    error = outcomes(2, ranks.watched_and_alone, backend="gloo", limit=60)[0].error
    assert isinstance(error, PeerLostError), error
    assert "raised ValueError: a bad batch" in str(error)


def test_blocks_of_two_threads_put_torchs_functions_back() -> None:
    """Whichever ends first."""
    assert run(2, ranks.watched_in_threads, backend="gloo") == [True, True]
