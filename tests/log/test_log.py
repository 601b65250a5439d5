"""A log's row is what one process would have logged of all ranks' values."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.log import merge
from distmetrics.log.kinds import KINDS as BY_NAME
from distmetrics.log.kinds import LARGEST_ARRAY, Kind
from distmetrics.log.names import Names, Totals
from distmetrics.log.window import WindowSnapshot
from distmetrics.log.writers import numbers
from distmetrics.message import decode, encode
from distmetrics.testing import run

KINDS = ("mean", "sum", "max", "min", "same", "quantile")
# One call on one rank: kind, number of the name, value, weight, whether they are tensors.
Call = tuple[str, int, float, float, bool]
values = st.one_of(st.floats(-1e6, 1e6, allow_subnormal=False), st.integers(-5, 5).map(float))
calls = st.tuples(st.sampled_from(KINDS), st.integers(0, 2), values, st.integers(0, 9).map(float), st.booleans())
windows = st.lists(calls, max_size=8)


def log_one(log: dm.Log, call: Call) -> None:
    kind, index, value, weight, is_tensor = call
    name = f"{kind}/{index}"  # a name that contains "min" is no minimum
    shown = torch.tensor(value, dtype=torch.float64) if is_tensor else value
    if kind == "same":
        log.same(name, float(index))
    elif kind == "mean":
        log.mean(name, shown, weight=torch.tensor(weight) if is_tensor else weight)
    else:
        getattr(log, kind)(name, shown)


def expected(ranks: list[list[Call]]) -> dict[str, Any]:
    """Return the exact row of one window."""
    by_name: dict[tuple[str, int], list[tuple[Fraction, Fraction]]] = defaultdict(list)
    for rank in ranks:
        for kind, index, value, weight, _ in rank:
            by_name[kind, index].append((Fraction(value), Fraction(weight)))
    row: dict[str, Any] = {}
    for (kind, index), values in by_name.items():
        name, plain = f"{kind}/{index}", [value for value, _ in values]
        total = sum(weight for _, weight in values)
        if kind == "mean":
            row[name] = sum(value * weight for value, weight in values) / total if total else math.nan
        elif kind == "same":
            row[name] = index
        elif kind == "quantile":
            ordered = sorted(plain)
            for label, share in (("p50", 50), ("p90", 90), ("p99", 99)):
                row[f"{name}_{label}"] = ordered[max(0, -(-share * len(ordered) // 100) - 1)]
            row[f"{name}_max"] = ordered[-1]
        else:
            row[name] = {"sum": sum, "max": max, "min": min}[kind](plain)
    return row


def check(row: dict[str, float], ranks: list[list[Call]]) -> None:
    exact = expected(ranks)
    assert set(row) == set(exact)
    for name, value in exact.items():
        if "quantile" in name and not name.endswith("max"):
            tolerance = abs(value) * Fraction(101, 10000) + Fraction(1, 10**9)
        else:
            size = max([abs(Fraction(each[2])) * 9 for rank in ranks for each in rank], default=Fraction(0))
            tolerance = Fraction(1, 10**12) * size * 10
        if isinstance(value, float) and math.isnan(value):
            assert math.isnan(row[name])
        else:
            assert abs(Fraction(row[name]) - value) <= tolerance, name


def logged(comm: Any, script: list[list[list[Call]]]) -> list[dict[str, float]]:
    """Return the rows of a script: by window and rank, what is logged."""
    log = dm.Log(comm)
    rows = []
    for window in script:
        for call in window[comm.rank]:
            log_one(log, call)
        rows.append(log.flush())
    return rows


def scripts(world_size: int) -> Any:
    window = st.lists(windows, min_size=world_size, max_size=world_size)
    return st.lists(window, min_size=1, max_size=3)


@settings(max_examples=60)
@given(st.integers(1, 5).flatmap(lambda size: st.tuples(st.just(size), scripts(size))))
def test_any_script_gives_the_row_of_one_process(case: tuple[int, Any]) -> None:
    world_size, script = case
    per_rank = run(world_size, logged, script)
    assert all(repr(rows) == repr(per_rank[0]) for rows in per_rank)
    for row, window in zip(per_rank[0], script, strict=True):
        check(row, window)


def some_scripts(count: int, world_size: int) -> list[Any]:
    """Return scripts from a fixed seed."""
    generator = torch.Generator().manual_seed(3)

    def draw(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    def call() -> Call:
        return KINDS[draw(6)], draw(3), draw(2000) / 8 - 100, float(draw(9)), bool(draw(2))

    return [[[[call() for _ in range(draw(7))] for _ in range(world_size)] for _ in range(2)] for _ in range(count)]


def logged_all(comm: Any, all_scripts: list[Any]) -> list[Any]:
    return [logged(comm, script) for script in all_scripts]


def test_on_processes() -> None:
    cases = some_scripts(20, 3)
    per_rank = run(3, logged_all, cases, backend="gloo")
    assert repr(per_rank[1]) == repr(per_rank[0])
    for script, rows in zip(cases, per_rank[0], strict=True):
        for row, window in zip(rows, script, strict=True):
            check(row, window)


def many_names(comm: Any) -> list[dict[str, float]]:
    """Log more than fits into a frame; on one rank with a name of its own."""
    log = dm.Log(comm)
    rows = []
    for window in range(3):
        for index in range(3000):
            log.mean(f"n{index}", float(index), weight=1 + comm.rank)
            log.max(f"m{index}", float(index * comm.rank))
        if comm.rank == window:
            log.min("own", -1.0)
        rows.append(log.flush())
    return rows


@pytest.mark.parametrize("backend", ["threads", "gloo"])
def test_more_names_than_a_frame_holds(backend: str) -> None:
    for rows in run(2, many_names, backend=backend):
        for window, row in enumerate(rows):
            assert row.pop("own", None) == (-1.0 if window < 2 else None)
            assert row == {f"n{i}": float(i) for i in range(3000)} | {f"m{i}": float(i) for i in range(3000)}


def flushed(comm: Any, action: Any) -> tuple[str, dict[str, float]]:
    """Return the error of a flush after ``action``, and what the next flush gives."""
    log = dm.Log(comm)
    log.sum("kept", 1.0)
    action(log, comm.rank)
    with pytest.raises((dm.InputError, dm.MismatchError)) as caught:
        log.flush()
    text = str(caught.value)
    try:
        return text, log.flush()
    except dm.MismatchError:  # what was logged is kept, and is still wrong
        return text, {}


FAULTS: dict[str, tuple[Any, list[str]]] = {
    "another kind on a rank": (
        lambda log, rank: log.mean("x", 1.0, weight=1) if rank else log.sum("x", 1.0),
        ["'x' in two ways", "rank 0  as a sum", "rank 1  as a mean"],
    ),
    "not the same": (
        lambda log, rank: log.same("epoch", rank),
        ["'epoch' was logged as the same", "rank 0  0.0, first at ", "rank 1  1.0, first at "],
    ),
    "NaN on one rank": (
        lambda log, rank: log.same("lr", math.nan if rank else 1.0),
        ["'lr' was logged as the same", "rank 1  nan"],
    ),
    "a weight on a device": (
        lambda log, rank: log.mean("x", 1.0, weight=torch.tensor(-float(rank))),
        ["'x': a weight is negative or not finite", "rank 1"],
    ),
    "an array on a rank": (
        lambda log, rank: log.sum("x", torch.ones(2) if rank else 1.0),
        ["'x' in two ways", "rank 0  as a sum, first", "rank 1  as a sum of shape [2]", "test_log.py:"],
    ),
    "another shape": (
        lambda log, rank: [log.min("x", torch.ones(2 + rank * step)) for step in range(2)],
        ["'x' was logged as a min of shape [2], first at", "now as a min of shape [3]", "rank 1", "test_log.py:"],
    ),
    "arrays that are not the same": (
        lambda log, rank: log.same("experts", [1, 2 + rank]),
        ["'experts' was logged as the same", "rank 0  [1.0, 2.0], first at ", "rank 1  [1.0, 3.0], first at "],
    ),
    "a weight too few": (
        lambda log, rank: log.mean("x", [1, 2, 3], weight=[1, 1] if rank else 1),
        ["the value of 'x' is of shape [3], and its weight of shape [2]", "rank 1", "test_log.py:"],
    ),
    "weights of a number": (
        lambda log, rank: log.std("x", 1.0, weight=torch.ones(2)) if rank else None,
        ["the value of 'x' is of shape [], and its weight of shape [2]", "rank 1"],
    ),
    "weights of many numbers": (
        lambda log, rank: log.std({"x": torch.ones(())}, weight=torch.ones(2)) if rank else None,
        ["the value of 'x' is of shape [], and its weight of shape [2]", "rank 1"],
    ),
    "a negative weight of an element": (
        lambda log, rank: log.mean("x", torch.ones(3), weight=torch.tensor([1, 1, -rank])),
        ["'x': a weight is negative or not finite", "rank 1"],
    ),
    "a negative weight of a sample": (
        lambda log, rank: log.std("x", [1, 2, 3], weight=[1, 1, -rank]),
        ["'x': a weight is negative or not finite", "rank 1"],
    ),
    "no elements": (
        lambda log, rank: log.sum("x", torch.ones(2 * (1 - rank))),
        ["the value of 'x' is an array of 0 elements", "rank 1"],
    ),
    "a list of tensors": (
        lambda log, rank: log.sum("x", [torch.ones(()), 2]) if rank else None,
        ["the value of 'x' is no number", "torch.stack", "rank 1"],
    ),
    "a list of text": (
        lambda log, rank: log.sum("x", ["a", "b"]) if rank else None,
        ["the value of 'x' is no number", "rank 1"],
    ),
    "an array changed in place": (
        lambda log, rank: (log.sum("x", x := torch.ones(2)), x.add_(rank) if rank else None),
        ["the value or weight of 'x' was changed in place", "value.clone()", "rank 1"],
    ),
    "one of many": (
        lambda log, rank: log.sum({"a": torch.ones(()), "b": torch.ones(1, 1 + rank)}),
        ["the value of 'b' is a tensor of shape [1, 2]", "rank 1", "test_log.py:"],
    ),
    "one of many by another kind": (
        lambda log, rank: (log.sum("b", 1.0), log.max({"a": torch.ones(()), "b": torch.ones(())}) if rank else None),
        ["'b' was logged as a sum", "now as a max", "rank 1"],
    ),
    "a weight of many": (
        lambda log, rank: log.mean({"a": torch.ones(()), "b": torch.ones(())}, weight=torch.tensor(-rank)),
        ["'a': a weight is negative or not finite", "rank 1"],
    ),
    "names and a value": (
        lambda log, rank: log.sum({"a": 1} if rank else "x", 1.0),
        ["a name must be a string, got {'a': 1}"],
    ),
    "no value": (lambda log, rank: log.sum("a", None if rank else 1.0), ["the value of 'a' is no number"]),
    "no text": (lambda log, rank: log.sum("x" if rank else "\ud800", 1.0), ["a name must be a string that UTF-8"]),
    "no name": (lambda log, rank: log.sum(rank or "x", 1.0), ["a name must be a string, got 1"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_rank_is_an_error_of_all(fault: str) -> None:
    action, parts = FAULTS[fault]
    for text, row in run(2, flushed, action):
        for part in parts:
            assert part in text
        assert row == {} or row["kept"] == 2.0


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


@settings(max_examples=4)
@given(st.integers(2, 3), st.integers(0, 1), st.sampled_from(["mean", "sum", "max", "min", "same"]), st.floats(1, 1.1))
def test_more_numbers_than_there_is_memory_for_are_refused(world_size: int, liar: int, op: str, times: float) -> None:
    kind = BY_NAME[op].but(size=LARGEST_ARRAY)
    count = int(times * 2**47 / (8 * kind.count))  # an address has 47 bits
    for text, row in run(world_size, flushed_by, liar, kind, count):
        assert "has no memory" in text
        assert row == {"x": 1.0 * world_size}


def without_a_log(comm: Any) -> str:
    if comm.rank:
        with pytest.raises(dm.MismatchError) as caught:
            dm.barrier(comm=comm)
        return str(caught.value)
    with pytest.raises(dm.MismatchError) as caught:
        dm.Log(comm).flush()
    return str(caught.value)


@pytest.mark.parametrize("backend", ["threads", "gloo"])
def test_a_rank_that_calls_something_else_is_named(backend: str) -> None:
    first, second = run(2, without_a_log, backend=backend)
    assert first == second
    assert "rank 0  Log.flush" in first


def resumed(comm: Any) -> tuple[dict[str, float], dict[str, float]]:
    whole, half = dm.Log(comm), dm.Log(comm)
    for index in range(6):
        if index == 3:
            state = half.state_dict()
            half = dm.Log(comm)
            half.load_state_dict(state)
        for log in (whole, half):
            log.mean("loss", torch.tensor(index / 7), weight=1 + index + comm.rank)
            log.max("norm", torch.tensor(float(index % 4)))
            log.quantile("seconds", 0.1 * index)
            log.same("epoch", index)
            log.std("reward", [1e6 + index, 1e6 - comm.rank], weight=[1, index])
            log.sum("experts", torch.arange(3) * index)
    return numbers(whole.flush()), numbers(half.flush())


def test_a_log_goes_on_from_a_checkpoint() -> None:
    for whole, half in run(2, resumed):
        assert whole == pytest.approx(half, rel=1e-12)


def test_a_state_is_left_as_it_is_and_must_fit() -> None:
    log, other = dm.Log(), dm.Log()
    log.same("epoch", 1)
    state = log.state_dict()
    other.same("epoch", 2)
    other.load_state_dict(state)
    assert other.flush() == {"epoch": 2.0}
    fresh = dm.Log()
    fresh.load_state_dict(state)
    assert fresh.flush() == {"epoch": 1.0}
    unlike = dm.Log()
    unlike.sum("epoch", 1)
    with pytest.raises(dm.InputError, match=r"'epoch' was logged as a sum, first at .*; now as a same"):
        unlike.load_state_dict(state)


def test_of_states_that_differ_in_what_is_the_same_the_first_one_counts() -> None:
    log = dm.Log()
    for epoch in (1, 2):
        saved = dm.Log()
        saved.same("epoch", epoch)
        saved.sum("steps", epoch)
        log.load_state_dict(saved.state_dict())
    assert log.flush() == {"epoch": 1.0, "steps": 3.0}


def test_a_state_of_another_version_is_refused() -> None:
    log = dm.Log()
    log.sum("kept", 1)
    state = {"names": "[]", "numbers": torch.zeros(0), "problem": None, "flushes": 1}
    for old in (state, {**state, "kinds": {"x": "sum"}}, None):
        with pytest.raises(dm.InputError, match="another version of distmetrics has saved it"):
            log.load_state_dict(old)
    assert log.flush() == {"kept": 1.0}


def in_groups(comm: Any) -> list[dict[str, float]]:
    """Flush one log among some ranks, then among all: what names are known differs by then."""
    log, rows = dm.Log(), []
    if comm.rank:
        pair = comm.subgroup([1, 2])
        for _ in range(2):
            log.sum(f"of {comm.rank}", 1.0)
            with dm.use(pair):
                rows.append(log.flush())
    for _ in range(2):
        log.sum("all", 1.0)
        if comm.rank:
            log.sum(f"of {comm.rank}", 1.0)
        rows.append(log.flush())
    return rows


@pytest.mark.parametrize("backend", ["threads", "gloo"])
def test_one_log_among_several_groups(backend: str) -> None:
    whole = {"all": 3.0, "of 1": 1.0, "of 2": 1.0}
    pair = {"of 1": 1.0, "of 2": 1.0}
    assert run(3, in_groups, backend=backend) == [[whole] * 2, [pair, pair, whole, whole], [pair, pair, whole, whole]]


def unlike_in_a_group(comm: Any) -> str:
    if comm.rank == 0:
        return ""
    log = dm.Log(comm.subgroup([1, 2]))
    log.same("epoch", comm.rank)
    with pytest.raises(dm.MismatchError) as caught:
        log.flush()
    assert caught.value.rank == comm.rank
    return str(caught.value)


@pytest.mark.parametrize("backend", ["threads", "gloo"])
def test_errors_of_a_group_name_the_ranks_of_the_job(backend: str) -> None:
    _, first, second = run(3, unlike_in_a_group, backend=backend)
    assert first == second
    assert "rank 1  1.0, first at" in first
    assert "rank 2  2.0, first at" in first


def over_a_mesh(comm: Any) -> dict[str, float]:
    over = dm.layout({"dp": 2, "tp": 2, "pp": 2}, comm=comm, dp="shard", tp="same", pp="last")
    log = dm.Log(over)
    if over.mesh.owns(comm.rank):
        log.mean("loss", 1.0 + over.rank, weight=1 + over.rank)
        log.sum("tokens", [10, over.rank])
        log.std("reward", [0.0, 1.0 + over.rank])
    return log.flush()


def test_over_a_layout_every_rank_gets_the_row_and_copies_count_once() -> None:
    row = {"loss": 5 / 3, "tokens": [20.0, 1.0], "reward": statistics.stdev([0, 1, 0, 2])}
    assert run(8, over_a_mesh) == [row] * 8


def many(comm: Any) -> dict[str, float]:
    log = dm.Log(comm)
    for step in range(3):
        x = torch.tensor(float(step), requires_grad=True)
        log.mean({"a": x, "b": 2 * x}, weight=1 + step)
        log.mean("a", 10.0, weight=1)
        log.sum({"whole": torch.tensor(1), "real": torch.tensor(0.5)})  # two dtypes
        log.max({"plain": 1.0 * step, "list": torch.tensor([comm.rank])})
        log.same({"epoch": 3, "step": step})
        log.quantile({"seconds": x, "waited": x})
        log.sum({})
    return log.flush()


def test_many_values_are_logged_as_one_by_one() -> None:
    first, second = run(2, many)
    assert first == second
    assert first["a"] == pytest.approx((2 * (1 * 0 + 2 * 1 + 3 * 2) + 2 * 30) / (2 * 9))
    assert first["b"] == pytest.approx(2 * 8 / 6)
    sums = {"whole": 6.0, "real": 3.0, "plain": 2.0, "list": 1.0, "epoch": 3.0, "step": 2.0}
    assert sums.items() <= first.items()
    assert first["seconds_max"] == first["waited_max"] == 2.0


def test_a_part_of_a_tensor_does_not_keep_the_whole() -> None:
    log, losses = dm.Log(), torch.ones(1000)
    log.sum("first", losses[0])
    log.sum({"second": losses[1], "third": losses[2]})
    losses += 1  # would be noticed, were it kept
    assert log.flush() == {"first": 1.0, "second": 1.0, "third": 1.0}
