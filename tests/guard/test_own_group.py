"""The guard in a process group that the user's script has made: the store lives in rank 0."""

from __future__ import annotations

import pytest

from tests.guard.scripts import ended

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]


def run(what: str, bad: int = 1) -> list[tuple[int, str, str]]:
    """Run the script on two ranks, one of which is to do something else."""
    return ended("script.py", what, str(bad), last=bad)


@pytest.mark.parametrize("what", ["nothing", "no goodbye"])
def test_a_job_that_ends_well_says_nothing(what: str) -> None:
    """No page of C++ about a store that ended with rank 0, whether or not the script destroys its group."""
    for rank, (code, out, err) in enumerate(run(what)):
        assert (code, out) == (0, f"rank {rank} is done\n"), err
        assert "TCPStore" not in err
        assert "terminate called" not in err


@pytest.mark.parametrize(
    ("what", "kind", "said", "bad"),
    [
        ("returns", "DivergedError", "rank {bad} has returned, and others still wait for it", 0),
        ("raises", "PeerLostError", "rank {bad}  raised ValueError: a bad batch  guard/script.py:", 1),
        ("is killed", "PeerLostError", "rank {bad}  its process is gone", 0),
        # Nobody has said yet who it is, and where it hosted the store nobody can be asked.
        ("is gone before the first call", "PeerLostError", "the connection to another rank broke", 1),
    ],
)
def test_who_is_lost_is_named(what: str, kind: str, said: str, bad: int) -> None:
    """Also rank 0, and the store with it."""
    code, out, err = run(what, bad)[1 - bad]
    assert code == 1, err
    assert f"rank {1 - bad} raised {kind}" in out, (out, err)
    assert said.format(bad=bad) in out.replace("tests/guard", "guard"), (out, err)


def test_the_verdict_outlives_the_store() -> None:
    """Rank 0, which hosts the store, ends by the error as soon as it is raised; rank 2 has read it by then."""
    ranks = ended("script.py", "is busy", "1", last=1, stopped=True, world_size=3, DISTMETRICS_TIMEOUT="2")
    for code, out, err in (ranks[0], ranks[2]):
        assert code == 1, err
        assert "raised DivergedError" in out, (out, err)
        assert "rank 1 did not come to a collective within 2 s" in out
