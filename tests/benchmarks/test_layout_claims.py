"""False claims about meshes are named on every rank, harmless, or what the documentation says cannot be seen."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import layout_claims
from benchmarks.layout_claims import BAD, Case, all_false, drawn, judge, tally

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_part_of_the_table_and_some_random_claims() -> None:
    counted, _ = tally([*all_false()][::23])
    assert counted["named"] >= 5
    others, _ = tally(drawn(60, seed=7))
    assert others.total() == 60
    assert not [word for word in BAD if counted[word] or others[word]]


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
