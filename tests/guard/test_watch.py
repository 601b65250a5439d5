"""Collectives of torch's own, inside guard.watch()."""

from __future__ import annotations

import pytest

from distmetrics import MismatchError, PeerLostError
from distmetrics.testing import outcomes, run
from tests.backends import same_error
from tests.guard import ranks

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(120)]


def test_what_is_right_gives_what_it_gives_without() -> None:
    """Every kind of collective, waited for and not, uneven ones, ours among them."""
    rows = [[1.0, 1.0], [2.0, 2.0]]
    assert (
        run(2, ranks.watched, "everything", backend="gloo")
        == [
            {
                "summed": [3.0, 3.0],
                "sent": rows[1],
                "gathered": rows,
                "objects": [0, 1],
                "ours": [3.0, 3.0],
                "direct": [3.0, 3.0],
            }
        ]
        * 2
    )


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("sum or max", "rank 1 calls torch.distributed.all_reduce sum, rank 0 torch.distributed.all_reduce max"),
        (
            "sum or max by name",
            "rank 1 calls torch.distributed.all_reduce sum, rank 0 torch.distributed.all_reduce max",
        ),
        ("metrics", "rank 1 sends BinaryAccuracy, rank 0 BinaryF1Score"),
        ("skipped", "rank 1 calls torch.distributed.all_reduce sum, rank 0 torch.distributed.barrier"),
    ],
)
def test_silent_mix_ups_are_refused(what: str, text: str) -> None:
    """Each of them gives a wrong number without a word, or hangs, where nobody watches."""
    error = same_error(outcomes(2, ranks.watched, what, backend="gloo", limit=60), MismatchError)
    assert text in str(error)
    assert "tests/guard/ranks.py:" in str(error)
    assert "site-packages" not in str(error)


def test_a_rank_that_never_comes() -> None:
    """The wait itself is watched as well."""
    error = outcomes(2, ranks.watched, "never comes", backend="gloo", limit=60)[0].error
    assert isinstance(error, PeerLostError), error
    assert "raised ValueError: a bad batch" in str(error)


def test_torchs_functions_are_put_back() -> None:
    """Whatever happens inside."""
    assert run(2, ranks.put_back, backend="gloo") == [[True, True]] * 2


def test_blocks_of_two_threads_put_torchs_functions_back() -> None:
    """Whichever ends first."""
    assert run(2, ranks.watched_in_threads, backend="gloo") == [True, True]


def test_calls_that_torch_collects() -> None:
    """Inside torch's coalescing manager a call has no work of its own to wait for."""
    assert run(2, ranks.watched, "collected", backend="gloo", limit=60) == [[2.0, 2.0]] * 2
