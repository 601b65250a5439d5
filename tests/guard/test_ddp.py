"""The most common hang: in a loop of DDP one rank skips our call, and goes on into its backward pass."""

from __future__ import annotations

import pytest

from distmetrics import DivergedError, PeerLostError
from distmetrics.testing import outcomes, run
from tests.guard import ddp

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]


def test_a_rank_that_skips_our_call_is_found_in_its_backward_pass() -> None:
    """And not at the deadline; with the line of the rank that has gone on."""
    ended = outcomes(3, ddp.loop, "skips", backend="gloo", limit=60)
    for rank in (0, 2):
        error = ended[rank].error
        assert isinstance(error, DivergedError), error
        assert str(error).startswith("rank 1 waits in a collective of torch.distributed, and this rank in another\n")
        assert "is in a backward pass or DistributedDataParallel  tests/guard/ddp.py:" in str(error)
    assert isinstance(ended[1].error, PeerLostError)  # its backward pass ends when the others do


def test_a_rank_that_calls_us_where_others_are_in_their_backward_pass() -> None:
    """The other way round."""
    error = outcomes(2, ddp.loop, "calls alone", backend="gloo", limit=60)[1].error
    assert isinstance(error, DivergedError), error
    assert str(error).startswith("rank 0 waits in a collective of torch.distributed, and this rank in another\n")


@pytest.mark.parametrize("wraps", [True, False])
def test_a_rank_that_only_takes_its_time_is_not_blamed(wraps: bool) -> None:
    """Whatever it does meanwhile, in its backward pass and elsewhere, for longer than one that is stuck is watched."""
    for taken in run(3, ddp.loops, wraps, backend="gloo", limit=60):
        assert min(taken) > 1.4
