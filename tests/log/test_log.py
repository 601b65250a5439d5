"""A log's row is what one process would have logged of all ranks' values, or an error of all of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import distmetrics as dm
from distmetrics.log import merge
from distmetrics.log.kinds import KINDS as BY_NAME
from distmetrics.log.kinds import LARGEST_ARRAY, Kind
from distmetrics.log.names import Names, Totals
from distmetrics.log.window import WindowSnapshot
from distmetrics.message import decode, encode
from distmetrics.testing import outcomes, run
from tests.backends import same_error


def test_more_names_than_a_frame_holds() -> None:
    """And on one rank a name of its own."""

    def work(comm: Any) -> None:
        log = dm.Log(comm)
        for window in range(2):
            for index in range(3000):
                log.mean(f"n{index}", float(index), weight=1 + comm.rank)
                log.max(f"m{index}", float(index * comm.rank))
            if comm.rank == window:
                log.min("own", -1.0)
            row = log.flush()
            assert row.pop("own") == -1.0
            assert row == {f"{kind}{i}": float(i) for kind in "nm" for i in range(3000)}

    run(2, work)


ONE, TWO = torch.ones(()), torch.ones(2)
NEGATIVE = "'x': a weight is negative or not finite"
# What rank 1 does otherwise than rank 0, and what both are told.
FAULTS: list[tuple[Any, list[str]]] = [
    (lambda log, rank: log.same("x", math.nan if rank else 1.0), ["'x' was logged as the same", "rank 1  nan"]),
    (
        lambda log, rank: log.sum("x", TWO if rank else 1.0),
        ["'x' in two ways", "rank 0  as a sum, first", "rank 1  as a sum of shape [2]", "test_log.py:"],
    ),
    (
        lambda log, rank: log.same("x", [1, 2 + rank]),
        ["'x' was logged as the same", "rank 0  [1.0, 2.0], first at ", "rank 1  [1.0, 3.0], first at "],
    ),
    (
        lambda log, rank: log.mean("x", [1, 2, 3], weight=[1, 1] if rank else 1),
        ["the value of 'x' is of shape [3], and its weight of shape [2]", "test_log.py:"],
    ),
    (
        lambda log, rank: rank and log.std({"x": ONE}, weight=TWO),
        ["the value of 'x' is of shape [], and its weight of shape [2]"],
    ),
    (lambda log, rank: log.mean("x", torch.ones(3), weight=torch.tensor([1, 1, -rank])), [NEGATIVE]),
    (lambda log, rank: log.std("x", [1, 2, 3], weight=[1, 1, -rank]), [NEGATIVE]),
    (lambda log, rank: log.mean({"x": ONE, "b": ONE}, weight=torch.tensor(-rank)), [NEGATIVE]),
    (lambda log, rank: log.sum("x", torch.ones(2 - 2 * rank)), ["the value of 'x' is an array of 0 elements"]),
    (lambda log, rank: rank and log.sum("x", [ONE, 2]), ["the value of 'x' is no number", "torch.stack"]),
    (
        lambda log, rank: (log.sum("x", x := torch.ones(2)), x.add_(rank) if rank else None),
        ["the value or weight of 'x' was changed in place", "value.clone()"],
    ),
    (
        lambda log, rank: (log.sum("x", 1.0), rank and log.max({"a": ONE, "x": ONE})),
        ["'x' was logged as a sum", "now as a max"],
    ),
    (lambda log, rank: log.sum({"x": 1} if rank else "x", 1.0), ["a name must be a string, got {'x': 1}"]),
    (lambda log, rank: (log.quantile("x", 1.0), rank and log.sum("x_max", 7.0)), ["two values of 'x_max'"]),
    (lambda log, rank: (log.sum("x", [1, 2]), log.sum("x/1", 3)), ["two values of 'x/1'"]),
    (lambda log, rank: log.sum("x", None if rank else 1.0), ["the value of 'x' is no number"]),
    (lambda log, rank: log.sum("\ud800" if rank else "x", 1.0), ["a name must be a string that UTF-8"]),
    (lambda log, rank: log.sum(rank or "x", 1.0), ["a name must be a string, got 1"]),
]


def test_a_fault_of_one_rank_is_an_error_of_all() -> None:
    """What else was logged is kept; where ranks still disagree, the next flush says so as well."""

    def work(comm: Any) -> list[str]:
        texts = []
        for fault, parts in FAULTS:
            log = dm.Log(comm)
            log.sum("kept", 1.0)
            fault(log, comm.rank)
            with pytest.raises((dm.InputError, dm.MismatchError)) as caught:
                log.flush()
            assert all(part in str(caught.value) for part in parts), parts
            assert "rank 1" in str(caught.value) or "two values" in parts[0], parts
            texts.append(str(caught.value))
            if isinstance(caught.value, dm.InputError):
                assert log.flush()["kept"] == 2.0, parts
        return texts

    first, second = run(2, work)
    assert first == second


@pytest.mark.parametrize("kind", [["sum", 1 << 40], ["std", 3], ["median", 0], "sum[8]"])
def test_what_a_peer_calls_a_kind_is_bounded(kind: Any) -> None:
    with pytest.raises(dm.MismatchError, match="rank 1 sent data that is no frame of distmetrics: names"):
        decode(Names, encode([{"x": kind}, False]), "names", 1)


def flushed_by(comm: Any, liar: int, kind: Kind, count: int) -> tuple[str, dict[str, Any]]:
    """Flush where one rank tells of more numbers than there is memory for, and sends none."""
    names = Names.of({f"n{index}": kind for index in range(count if comm.rank == liar else 0)})
    totals = Totals(names, torch.zeros(0, dtype=torch.float64))
    snapshot = WindowSnapshot(totals, {}, {}, None, None)
    with pytest.raises(dm.InputError) as caught:
        merge.flushed(snapshot, merge.Known(), comm=comm)
    log = dm.Log(comm)
    log.sum("x", 1.0)
    return str(caught.value), log.flush()


@pytest.mark.parametrize(("liar", "op"), [(1, "mean"), (0, "max")])
def test_more_numbers_than_there_is_memory_for_are_refused(liar: int, op: str) -> None:
    kind = BY_NAME[op].but(size=LARGEST_ARRAY)
    count = int(1.05 * 2**47 / (8 * kind.count))  # an address has 47 bits
    for text, row in run(2, flushed_by, liar, kind, count):
        assert "has no memory" in text
        assert row == {"x": 2.0}


def saved(**values: Any) -> dict[str, Any]:
    log = dm.Log()
    for kind, value in values.items():
        getattr(log, kind)("epoch" if kind == "same" else kind, value)
    return log.state_dict()


def test_states_are_left_as_they_are_and_must_fit() -> None:
    """Of several that differ in what is the same, the first one counts; of other versions none."""
    state = saved(same=1, sum=1)
    for logged, expected in ((None, 1.0), (2, 2.0)):
        log = dm.Log()
        if logged is not None:
            log.same("epoch", logged)
        log.load_state_dict(state)
        log.load_state_dict(saved(same=3, sum=2))
        assert log.flush() == {"epoch": expected, "sum": 3.0}
    unlike = dm.Log()
    unlike.sum("epoch", 1)
    with pytest.raises(dm.InputError, match=r"'epoch' was logged as a sum, first at .*; now as a same"):
        unlike.load_state_dict(saved(max=1.0, same=1))
    old = {"names": "[]", "numbers": torch.zeros(0), "problem": None, "flushes": 1}
    for each in (old, {**old, "kinds": {"x": "sum"}}, None):
        with pytest.raises(dm.InputError, match="another version of distmetrics has saved it"):
            unlike.load_state_dict(each)
    assert unlike.flush() == {"epoch": 1.0}  # nothing is left behind


def test_one_log_among_several_groups() -> None:
    """What names are known differs by then; errors name the ranks of the job."""

    def work(comm: Any) -> list[dict[str, float]]:
        log, rows = dm.Log(), []
        for group in (None, None, comm, comm):
            if group is None and comm.rank == 0:
                continue
            log.sum(f"of {comm.rank}", 1.0)  # names that two ranks know from before
            with dm.use(group or comm.subgroup([1, 2])):
                rows.append(log.flush())
        return rows

    pair, whole = {"of 1": 1.0, "of 2": 1.0}, {"of 0": 1.0, "of 1": 1.0, "of 2": 1.0}
    assert run(3, work) == [[whole] * 2, [pair, pair, whole, whole], [pair, pair, whole, whole]]

    def unlike(comm: Any) -> None:
        if comm.rank:
            log = dm.Log(comm.subgroup([1, 2]))
            log.same("epoch", comm.rank)
            log.flush()

    _, *ended = outcomes(3, unlike)
    error = same_error(ended, dm.MismatchError)
    assert "rank 1  1.0, first at" in str(error)
    assert "rank 2  2.0, first at" in str(error)


def test_a_log_that_begins_anew_on_one_rank() -> None:
    """The other knows names that it does not."""

    def work(comm: Any) -> None:
        log = dm.Log(comm)
        for window in range(3):
            if window == 1 and comm.rank == 0:
                state = log.state_dict()
                log = dm.Log(comm)
                log.load_state_dict(state)
            log.sum("all", 1.0)
            log.sum(f"of {comm.rank}", 2.0)
            assert log.flush() == {"all": 2.0, "of 0": 2.0, "of 1": 2.0}

    run(2, work)
