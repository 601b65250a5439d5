"""What a postmortem makes of the ranks' files: read or refused, where the ranks part, what is printed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.cli.postmortem import PostMortem, describe, merge, parting, read
from distmetrics.errors import ConfigurationError
from distmetrics.guard.report import RankReport, ReportedCall
from tests.guard.left import call, guarded, leave, left, steps


def of(tmp_path: Path, reports: Sequence[dict[str, Any]]) -> PostMortem:
    return merge(read(leave(tmp_path / "left", reports)))


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(folder)
    return str(caught.value)


# --- reading --------------------------------------------------------------------------------------------------------


def test_other_files_and_items_are_left_alone_and_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name in ("none", "file", "empty"):
        assert "holds no file rank-<number>.json" in refusal(tmp_path / name)
    leave(tmp_path, [left(rank, 12, [call(1, 0, 1, later="?")], site=None, later={"x": 1}) for rank in range(12)])
    for name in ("rank-13.json.tmp", "rank-01.json", "notes.json", "rank-.json"):
        (tmp_path / name).write_text("{")
    assert list(read(tmp_path)) == list(range(12))


@given(part=st.floats(0, 1, exclude_max=True))
def test_a_half_written_file_is_refused_wherever_it_ends(part: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = leave(tmp_path_factory.mktemp("half"), guarded(2))
    path = folder / "rank-1.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    said = refusal(folder)
    assert re.search(r"1 of the files in .* cannot be used\n\n  rank 1  is not as this distmetrics writes it: ", said)
    assert "Do:     move these files away" in said
    path.unlink()
    assert list(read(folder)) == [0]  # what the text advises


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "$.schema"),
        ({"schema": True}, "$.schema"),
        ({"rank": "1"}, "$.rank"),
        ({"world_size": 10**12}, "$.world_size"),
        ({"written": "now"}, "$.written"),
        ({"error": {"kind": "E"}}, "`code` - at `$.error"),
        ({"where": [1]}, "$.where[0]"),
        ({"calls": [call(1, 0, 1), call(2, 1, 2) | {"op": 5}]}, "$.calls[1].op"),
        ({"calls": [call(1, 0, 1) | {"started": None}]}, "$.calls[0].started"),
        ({"calls": [call(True, 0, 1)]}, "$.calls[0].number"),
        ({"written": float("nan")}, "JSON is malformed"),
        *((text, "") for text in (b"[]", b"3", b"\xff\xfe", b"[" * 100_000)),
        ({"rank": 0}, "  rank 1  is of rank 0 of 2"),
        ({"world_size": 1}, "  rank 1  is of a job of different size, 1 and not 2"),
    ],
)
def test_what_makes_no_sense_or_is_of_another_job_is_refused_by_name(tmp_path: Path, change: Any, said: str) -> None:
    leave(tmp_path, guarded(2))
    text = change if isinstance(change, bytes) else json.dumps(left(1, 2, []) | change).encode()
    (tmp_path / "rank-1.json").write_bytes(text)
    (line,) = (line for line in refusal(tmp_path).splitlines() if line.startswith("  rank 1  "))
    assert line == said or line.startswith("  rank 1  is not as this distmetrics writes it: ")
    assert said in line


# --- where the ranks part -------------------------------------------------------------------------------------------


WAITS = [*steps(5), call(6, 1, None)]
OF_ROWS = [call(n, n / 100, n / 100 + 0.001, group="rows") for n in range(1, 51)]
GATHER_5 = call(5, 1, 1.1, 'all_gather "w"')


@pytest.mark.parametrize(
    ("calls", "at"),
    [
        ((WAITS, OF_ROWS), (6, (1,))),  # its last calls are of another group
        ((steps(60)[:50], steps(60)[5:50]), None),  # older ones are no longer kept
        ((steps(51)[:50], steps(51)[1:]), (51, (0,))),
        (([*steps(4), GATHER_5, call(6, 2, None)], steps(4)), (5, (1,))),  # others ended one without it
        ((steps(4), [*steps(1), *steps(4)[2:]]), (2, (1,))),  # it left one out
        (([*steps(3), call(4, 1, None)], WAITS, None), (4, (2,))),  # without a file: missed from the first wait on
    ],
)
def test_the_first_difference(tmp_path: Path, calls: Sequence[Any], at: tuple[int, tuple[int, ...]] | None) -> None:
    made = [left(rank, len(calls), each) for rank, each in enumerate(calls) if each is not None]
    found = [(one.number, one.absent) for one in of(tmp_path, made).divergences]
    assert found == ([] if at is None else [at])


@st.composite
def jobs(draw: st.DrawFn) -> tuple[dict[int, RankReport], str, int, int]:
    """Play a job of which one rank stops before a call that it should make; return that call and rank."""
    size = draw(st.integers(2, 6))
    members = {"world": range(size), "even": range(0, size, 2), "odd": range(1, size, 2)}
    plan = draw(st.lists(st.sampled_from(sorted(members)), min_size=1, max_size=30).filter(lambda p: "world" in p))
    at = draw(st.sampled_from([place for place, group in enumerate(plan) if len(members[group]) > 1]))
    rank = draw(st.sampled_from(members[plan[at]]))
    kept = draw(st.integers(1, 50))
    counts = dict.fromkeys(members, 0)
    stopped: set[int] = set()
    calls: dict[int, list[ReportedCall]] = {one: [] for one in range(size)}
    wanted = 0
    for place, group in enumerate(plan):
        counts[group] += 1
        if place == at:
            stopped.add(rank)
            wanted = counts[group]
        here = [one for one in members[group] if one not in stopped]
        waits = len(here) < len(members[group])
        for one in here:
            calls[one].append(
                ReportedCall(counts[group], group, f"op {place}", "", "", float(place), None if waits else place + 0.5)
            )
        stopped |= set(here) if waits else set()
    reports = {
        one: RankReport(1, one, size, "h", 1, 99.0, None, (), tuple(made[-kept:])) for one, made in calls.items()
    }
    return reports, plan[at], wanted, rank


@given(jobs())
def test_the_first_difference_is_where_a_rank_stopped(job: tuple[dict[int, RankReport], str, int, int]) -> None:
    reports, group, number, rank = job
    post = merge(reports)
    known = group == "world" or any(call.group == group for call in reports[rank].calls)
    found = [(one.group, one.number, one.absent) for one in post.divergences]
    if known:  # that a rank is in another group than the world can only be told from a call of it
        assert found[0] == (group, number, (rank,))
    else:
        assert (group, number, (rank,)) not in found


# --- what is printed ------------------------------------------------------------------------------------------------


def test_the_text_of_a_job_whose_rank_did_not_come(tmp_path: Path) -> None:
    assert describe(of(tmp_path, [one for one in guarded(5) if one["rank"] != 3])) == (
        "4 of 5 ranks left a file; rank 3 left none\n"
        "\n"
        'ranks 1, 3 did not come to call 17 of world, all_gather "val/f1"\n'
        "\n"
        '  ranks 0, 2, 4  all_gather "val/f1" float32[10]  train.py:8 in main, no end\n'
        "  rank 1         was elsewhere  train.py:81 in load\n"
        "  rank 3         left no file\n"
        "\n"
        "Likely: a rank without a file was killed at once (out of memory, SIGKILL), came to its end, has not imported "
        "distmetrics, or wrote on another machine\n"
        "Do:     look into the log of rank 3, and of the machine; let all ranks write into one folder\n"
        "\n"
        "ranks 0, 2, 4 raised DivergedError at train.py:8 in main\n"
        "  ranks are in different places\n"
        "\n"
        '    rank 0  all_gather "val/f1"\n'
        "    rank 1  elsewhere\n"
        "\n"
        "where each rank was, innermost first\n"
        "\n"
        "  ranks 0, 2, 4  train.py:8 in main ← train.py:12 in main\n"
        "  rank 1         train.py:81 in load ← train.py:12 in main"
    )


def test_waits_are_told_in_another_group_and_where_no_rank_differs(tmp_path: Path) -> None:
    own = [*steps(2), call(4, 1, None, 'all_reduce "x"', group="rows")]
    post = of(tmp_path, [left(0, 2, [*steps(2), call(3, 0.5, None)]), left(1, 2, own)])
    assert 'rank 1  waited in rows call 4, all_reduce "x" float32[]  train.py:6 in step' in parting(post)
    assert "\n" not in parting(of(tmp_path, [left(0, 2, steps(2)), left(1, 2, steps(2))]))
    said = parting(of(tmp_path, [left(rank, 2, [*steps(2), call(3, 1, None)]) for rank in range(2)]))
    assert 'ranks 0-1  waited in world call 3, all_reduce "loss" float32[]' in said


def test_an_error_that_says_how_a_rank_ended_leaves_nothing_to_guess(tmp_path: Path) -> None:
    error = {"kind": "DivergedError", "code": "diverged", "text": "rank 1 has returned", "peers": [1], "site": ""}
    said = parting(of(tmp_path, [left(0, 2, [*steps(2), call(3, 1, None)], error=error)]))
    assert "Likely: rank 1 ended as the error below says" in said
    assert "killed at once" not in said


def test_of_many_errors_a_few_are_told(tmp_path: Path) -> None:
    def error(rank: int) -> dict[str, Any]:
        text = f"rank {rank}: " + "a long story " * 100
        return {"kind": "ValueError", "code": "", "text": text, "peers": [], "site": ""}

    said = describe(of(tmp_path, [left(rank, 300, steps(3), error=error(rank)) for rank in range(300)]))
    assert 0 < said.count("a long story") <= 5 * 100
    assert "295 other errors are not shown" in said
