"""The most common hang: in a loop of DDP one rank skips our call, and goes on into its backward pass."""

from __future__ import annotations

import pytest

from distmetrics import DivergedError, PeerLostError
from distmetrics.testing import outcomes, run
from tests.guard import ddp

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]


def seconds(error: BaseException | None) -> float:
    return float(error.__notes__[0]) if error is not None else 0.0


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_rank_that_skips_our_call_is_found_in_its_backward_pass(world_size: int) -> None:
    """Long before the deadline of 300 s, with the line of the rank that has gone on."""
    ended = outcomes(world_size, ddp.loop, "skips", backend="gloo", limit=60)
    for rank in {*range(world_size)} - {1}:
        error = ended[rank].error
        assert isinstance(error, DivergedError), error
        assert str(error).startswith("rank 1 waits in a collective of torch.distributed, and this rank in another\n")
        assert "is in a backward pass  tests/guard/ddp.py:" in str(error)
        assert seconds(error) < 10
    assert isinstance(ended[1].error, PeerLostError)  # its backward pass ends when the others do


def test_a_rank_that_calls_us_where_others_are_in_their_backward_pass() -> None:
    """The other way round."""
    error = outcomes(2, ddp.loop, "calls alone", backend="gloo", limit=60)[1].error
    assert isinstance(error, DivergedError), error
    assert str(error).startswith("rank 0 waits in a collective of torch.distributed, and this rank in another\n")
    assert seconds(error) < 10


@pytest.mark.parametrize("wraps", [True, False])
@pytest.mark.parametrize("what", ["computes in backward", "sleeps in backward", "waits for data", "sends", "receives"])
def test_a_rank_that_only_takes_its_time_is_not_blamed(what: str, wraps: bool) -> None:
    """Whatever it does meanwhile, in its backward pass and elsewhere, for longer than one that is stuck is watched."""
    assert max(run(3, ddp.loop, what, wraps, backend="gloo", limit=60)) > 1.5
