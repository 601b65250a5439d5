"""Every transport keeps one contract: equal shapes, rank order, any dtype, never in place, errors that name ranks."""

from __future__ import annotations

import re

import pytest
import torch

from distmetrics import Communicator, DivergedError, MismatchError, PeerLostError, SingleCommunicator, ThreadWorld
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import both_backends, same_error
from tests.comm import ranks


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "work",
    [ranks.every_dtype, ranks.every_reduction, ranks.odd_memory, ranks.never_in_place],
    ids=lambda work: work.__name__,
)
def test_threads_keep_the_contract(work: object, world_size: int) -> None:
    """The thread world stands in for the real thing in most tests, so it must move data the same way."""
    run(world_size, work)  # type: ignore[arg-type]


@pytest.mark.gloo
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_gloo_keeps_the_contract(world_size: int) -> None:
    """The same on real processes, all in one start."""
    run(world_size, ranks.everything, backend="gloo")


def test_a_world_of_one_keeps_the_contract() -> None:
    """The communicator of an ordinary script is a transport like any other, behind a recorder too."""
    for comm in (SingleCommunicator(), RecordingCommunicator(SingleCommunicator())):
        assert isinstance(comm, Communicator)
        ranks.everything(comm)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_misuse_is_refused_in_one_voice(world_size: int) -> None:
    """Wrong arguments read the same on every transport."""
    texts = run(world_size, ranks.refuses_misuse)[0]
    assert texts[-2:] == [
        f"broadcast from rank {world_size} in a world of {world_size}",
        f"broadcast from rank -1 in a world of {world_size}",
    ]
    if world_size > 1:
        assert texts[0] == f"all_to_all needs {world_size} parts alike, got float32[2]"
        assert texts[1].startswith(f"all_to_all needs {world_size} parts alike, got float32[1], float32[2]")


@both_backends
def test_a_rank_that_raises_is_named_on_the_others(backend: str) -> None:
    """The survivors say who failed and why; the failing rank keeps its own error."""
    ended = outcomes(3, ranks.raises_on_one, 1, backend=backend)  # type: ignore[arg-type]
    assert isinstance(ended[1].error, KeyError)
    for rank in (0, 2):
        error = ended[rank].error
        assert isinstance(error, PeerLostError)
        assert error.peers == (1,)
        assert str(error).startswith("rank 1 failed and will never answer")
        assert re.search(r"rank 1\s+raised KeyError: 'no such column'  tests/comm/ranks.py:\d+ in raises", str(error))


def test_run_raises_the_cause_with_the_others_as_notes() -> None:
    """Ranks that were only let down never hide the rank that raised."""
    with pytest.raises(KeyError, match="no such column") as caught:
        run(3, ranks.raises_on_one, 1)
    assert caught.value.__notes__[0] == "raised on rank 1"
    assert caught.value.__notes__[1] == "ranks 0, 2 raised PeerLostError: rank 1 failed and will never answer"


@both_backends
def test_a_rank_that_returns_early_is_named_on_the_others(backend: str) -> None:
    """A skipped collective is no time-out: the others hear who left."""
    ended = outcomes(3, ranks.returns_early_on_one, 2, backend=backend)  # type: ignore[arg-type]
    assert ended[2].value == "early"
    for rank in (0, 1):
        error = ended[rank].error
        assert isinstance(error, DivergedError)
        assert error.peers == (2,)
        assert str(error).startswith("rank 2 has returned, and others still wait for it")


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("end", "bad", "why"),
    [
        (ranks.killed_on_one, 1, "was killed by SIGKILL"),
        (ranks.killed_on_one, 0, "was killed by SIGKILL"),
        (ranks.exits_on_one, 1, "ended with exit code 3"),
    ],
)
def test_a_rank_that_dies_is_named_on_the_survivors(end: object, bad: int, why: str) -> None:
    """It can't say so itself, rank 0 no more than another: whoever started it says it."""
    ended = outcomes(3, end, bad, backend="gloo")  # type: ignore[arg-type]
    for outcome in ended:
        assert isinstance(outcome.error, PeerLostError), outcome
        assert outcome.error.peers == (bad,)
        assert why in str(outcome.error)


@both_backends
def test_a_broken_world_stays_broken(backend: str) -> None:
    """After a loss the next collective of a real group may return garbage, so every later call raises at once."""
    ended = outcomes(3, ranks.calls_again_after_a_loss, 0, backend=backend)  # type: ignore[arg-type]
    for outcome in ended[1:]:
        assert outcome.value == ["PeerLostError: rank 0 failed and will never answer"] * 2


def test_results_keep_the_device_of_the_input() -> None:
    """Transports move tensors to where they need them, and back."""
    assert SingleCommunicator().all_gather(torch.ones(2))[0].device == torch.device("cpu")
    assert ThreadWorld(1).communicator(0).all_reduce(torch.ones(2), "sum").device == torch.device("cpu")


@pytest.mark.gloo
@pytest.mark.parametrize("world_size", [2, 3])
def test_large_and_small_gathers_that_meet_end_in_an_error(world_size: int) -> None:
    """Gloo makes them in two ways that never meet: without a word from the guard, all would wait for ever."""
    ended = outcomes(world_size, ranks.gathers_unequal_sizes, backend="gloo", limit=60)
    assert "all_gather of large data" in str(same_error(ended, MismatchError))
