"""What ranks disagree on, and what one rank cannot send, is the same typed error on all ranks, before data moves."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

import distmetrics as dm
from distmetrics import MismatchError
from distmetrics.collectives import exchange
from distmetrics.testing import outcomes, run
from distmetrics.testing.recording import RecordingCommunicator
from tests.backends import same_error
from tests.collectives import ranks
from tests.collectives.cases import CASES, all_verdicts
from tests.metrics.samples import SAMPLES, batches
from tests.metrics.test_right import check, on_rank


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


def test_text_of_a_dtype_and_of_a_name() -> None:
    """Pinned: metrics that are reduced in different order would otherwise be summed into each other."""
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
    headline = 'ranks disagree on a collective: rank 1 calls all_reduce sum "f1", ranks 0, 2 call all_reduce sum "loss"'
    assert texts("name").startswith(headline + "\n")


def test_texts_tell_who_and_what_and_stay_short() -> None:
    """The rank and the leaf at fault; the place where two large trees differ, not the trees; ranks are counted."""
    head, _, rest = texts("string").partition("\n")
    assert head.startswith("all_gather: ['a'] is a str, of which torch makes no tensor: ")
    assert head.endswith(" (rank 1)")
    assert "  ranks 0, 2  all_gather ['a'] float32[2]  tests/collectives/cases.py:N\n" in rest
    assert rest.endswith("No data was moved.\nDo:     for other objects call all_gather_object.")
    for name in ("number of leaves", "thousandth leaf"):
        assert max(map(len, texts(name).splitlines())) < 500, name
    keys = [{f"key {index}": 1 for index in range(500)} for _ in range(2)]
    del keys[1]["key 250"]
    error = same_error(outcomes(2, lambda comm: dm.all_gather(keys[comm.rank])), MismatchError)
    assert "'key 250'" in error.what
    assert len(error.what) < 500
    error = same_error(outcomes(8, lambda comm: dm.all_gather(torch.ones(comm.rank))), MismatchError)
    assert error.what.count("rank ") == 4
    assert error.peers == (1, 2, 3, 4, 5, 6, 7)


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every world a large one."""
    monkeypatch.setattr(exchange, "LARGE_WORLD", 1)


@pytest.mark.usefixtures("small_is_large")
def test_every_operation_and_every_disagreement() -> None:
    """The same answers by the other way. A hash tells only that ranks differ; the frames that follow tell who."""
    run(3, ranks.everything)
    each = run(3, all_verdicts)
    for name, case in CASES.items():
        verdicts = [verdict[name] for verdict in each]
        assert [rank for _, rank, *_ in verdicts] == [0, 1, 2], name
        ((kind, peers, _),) = {(kind, *rest) for kind, _, *rest in verdicts}
        assert (kind, peers) == (case.error.__name__, case.peers), name


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
