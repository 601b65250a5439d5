"""What ranks disagree on, and what one rank cannot send, is the same typed error on all ranks, before data moves."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

import distmetrics as dm
from distmetrics import MismatchError
from distmetrics.testing import outcomes, run
from tests.backends import same_error
from tests.collectives.cases import CASES, all_verdicts


@functools.cache
def verdicts(backend: str) -> list[dict[str, Any]]:
    return run(3, all_verdicts, backend=backend)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_every_rank_raises_the_same_error(name: str) -> None:
    """One world runs all cases, so each also shows that the world is in step after the one before."""
    case = CASES[name]
    each = [rank[name] for rank in verdicts("threads")]
    assert [kind for kind, *_ in each] == [case.error.__name__] * 3
    assert [rank for _, rank, *_ in each] == [0, 1, 2]
    assert {peers for _, _, peers, _ in each} == {case.peers}
    assert len({text for *_, text in each}) == 1


@pytest.mark.gloo
def test_processes_give_the_verdicts_of_threads() -> None:
    """The thread world stands in for real processes in users' tests, texts included."""
    assert verdicts("threads") == verdicts("gloo")


def texts(name: str) -> str:
    """The error's text, with the line number of this file's helper left out."""
    return re.sub(r"cases\.py:\d+ in <lambda>", "cases.py:N", verdicts("threads")[0][name][3])


def test_text_of_a_dtype() -> None:
    """Pinned: the headline says who sends what, and the advice is the usual cause."""
    assert texts("dtype") == (
        "ranks disagree on all_reduce sum: rank 1 sends float64[2], ranks 0, 2 send float32[2]\n"
        "\n"
        "  ranks 0, 2  all_reduce sum float32[2]  tests/collectives/cases.py:N\n"
        "  rank 1      all_reduce sum float64[2]  tests/collectives/cases.py:N\n"
        "\n"
        "No data was moved; every rank keeps what it had.\n"
        "Likely: shards of different size; or a rank without data that built its tensor from Python numbers, of which "
        "torch inferred the dtype.\n"
        "Do:     make shape and dtype equal on all ranks; all_gather_cat joins uneven shards, and a metric needs no "
        "numbers of a rank without data."
    )


def test_text_of_a_name() -> None:
    """Pinned: two metrics reduced in different order would otherwise be summed into each other."""
    assert texts("name") == (
        'ranks disagree on a collective: rank 1 calls all_reduce sum "f1", ranks 0, 2 call all_reduce sum "loss"\n'
        "\n"
        '  ranks 0, 2  all_reduce sum "loss" float32[2]  tests/collectives/cases.py:N\n'
        '  rank 1      all_reduce sum "f1" float32[2]  tests/collectives/cases.py:N\n'
        "\n"
        "No data was moved; every rank keeps what it had.\n"
        "Likely: a collective under a condition, or in a loop, that not all ranks share.\n"
        "Do:     make every rank call the same collectives, in the same order, under the same names."
    )


def test_text_of_a_value_that_cannot_be_sent() -> None:
    """The rank and the leaf at fault."""
    head, _, rest = texts("string").partition("\n")
    assert head.startswith("all_gather: ['a'] is a str, of which torch makes no tensor: ")
    assert head.endswith(" (rank 1)")
    assert "  ranks 0, 2  all_gather ['a'] float32[2]  tests/collectives/cases.py:N\n" in rest
    assert "  rank 1      all_gather  tests/collectives/cases.py:N  ['a'] is a str, " in rest
    assert rest.endswith("No data was moved.\nDo:     for other objects call all_gather_object.")


def test_texts_stay_short_however_large_the_trees() -> None:
    """The place where two trees of thousands of leaves differ is shown, not the trees."""
    for name in ("number of leaves", "thousandth leaf"):
        assert max(map(len, texts(name).splitlines())) < 500, name
    keys = [{f"key {index}": 1 for index in range(500)} for _ in range(2)]
    del keys[1]["key 250"]
    error = same_error(outcomes(2, lambda comm: dm.all_gather(keys[comm.rank])), MismatchError)
    headline = str(error).partition("\n")[0]
    assert "'key 250'" in headline
    assert len(headline) < 500


def test_many_different_ranks_are_counted_not_listed() -> None:
    """The headline of a hundred different shapes shows some, and the lines below are still one for each kind."""
    error = same_error(outcomes(8, lambda comm: dm.all_gather(torch.ones(comm.rank))), MismatchError)
    assert str(error).partition("\n")[0].count("rank ") == 4
    assert error.peers == (1, 2, 3, 4, 5, 6, 7)
