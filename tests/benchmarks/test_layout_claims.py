"""False claims about meshes are named on every rank, harmless, or what the documentation says cannot be seen."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import layout_claims
from benchmarks.layout_claims import Case, any_case, judge, table, tally
from distmetrics.testing.check import drawn

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_part_of_the_table() -> None:
    counted, bad, _ = tally([*table()][::23])
    assert not bad
    assert counted["named"] >= 5


def test_some_random_claims() -> None:
    counted, bad, _ = tally(drawn(any_case(), 60, seed=7))
    assert not bad
    assert counted.total() == 60


def test_copies_are_seen_beside_ranks_without_data() -> None:
    """Those of other pipeline stages, which are said to be shards too."""
    true = {"pp": "last", "tp": "same"}
    case = Case({"pp": 3, "tp": 2}, true, {"pp": "shard", "tp": "shard"}, "counts", seed=1)
    assert judge(case)[0] == "named"


def test_a_wrong_outcome_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that excuses everything would prove nothing."""
    case = Case({"dp": 2}, {"dp": "shard"}, {"dp": "shard"}, "sum", seed=1)
    assert judge(case) == ("right", "")
    monkeypatch.setattr(layout_claims, "on_rank", lambda comm, case: 1.0)
    assert judge(case)[0] == "wrong"
    monkeypatch.setattr(layout_claims, "on_rank", one_alone)
    assert judge(case)[0] == "hang"


def one_alone(comm: Any, case: Case) -> None:
    if comm.rank == 0:
        comm.barrier()
