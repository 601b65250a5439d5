"""Finding out why a rank waits: the verdicts, when they come, what it asks of the store, and the texts."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distmetrics.collectives.exchange import refuse_histories
from distmetrics.comm.communicator import Call, break_after
from distmetrics.comm.process_group import PendingCall
from distmetrics.comm.verdict import Departure
from distmetrics.errors import Site, who
from distmetrics.guard.settings import Settings
from distmetrics.guard.store import Tombstones
from distmetrics.guard.watchdog import Watchdog
from distmetrics.testing import outcomes
from tests.guard.simulated import Job


def test_a_rank_that_comes_late_is_no_verdict_until_the_users_deadline(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(2)
    job.ranks[0].wait(timeout=30)
    with caplog.at_level(logging.WARNING, "distmetrics.guard"):
        job.run(29)
    assert job.verdicts == [None, None]
    assert "rank 0 waits since 5 s in all_gather" in caplog.text
    assert "rank 1  is at train.py:1 in main" in caplog.text
    assert len(caplog.records) == 3  # after 5, 10 and 20 seconds
    job.run(2)
    assert job.verdicts == ["rank 1 did not come to a collective within 30 s", None]


EXACT = {"counts_exactly": True}
NUMBERS = "ranks came to a collective after different numbers of torch.distributed's own"
DEADLOCK = "deadlock: ranks {} wait for each other in different calls"


@pytest.mark.parametrize(
    ("waits", "seconds", "verdict"),
    [
        ([{"group": "a"}, {"group": "b"}], 1, DEADLOCK.format("0-1")),
        (
            [{"group": "a", "members": "0-1"}, {"group": "b", "members": "1-2"}, {"group": "c", "members": "0, 2"}],
            1.5,
            DEADLOCK.format("0-2"),
        ),
        # Another thread may be about to make the call that is waited for.
        ([{"group": "a", "alone": False}, {"group": "b", "alone": False}], 30, None),
        # 0 waits for 1, which waits for 2, which is busy: it will come.
        ([{"group": "a", "members": "0-1"}, {"group": "b", "members": "1-2"}, None], 200, None),
        # A broadcast's source is done first, and waits in the next call for those who still receive.
        ([{"call": 2}, {"call": 1}], 100, None),
        # Direct calls of the transport, which nobody agrees upon before.
        ([{"kind": "all_reduce sum"}, {"kind": "barrier"}], 0.5, "ranks disagree on a collective"),
        # A large transfer over a slow link.
        ([{"timeout": 60}] * 3, 59, None),
        ([{"timeout": 60}] * 3, 61, "all ranks came to a collective, and it did not end within 60 s"),
        # NCCL's ranks run on and meet in our next call, which pairs up with another collective of torch's own.
        (
            [EXACT, EXACT | {"issued": 5}],
            2,
            "ranks came to a collective after different numbers of torch.distributed's own",
        ),
        ([{}, {"issued": 5}], 2, None),
    ],
)
def test_ranks_that_wait(waits: list[dict[str, Any] | None], seconds: float, verdict: str | None) -> None:
    """All get the same text, though they wait in different groups."""
    job = Job(len(waits))
    for rank, wait in zip(job.ranks, waits, strict=True):
        if wait is not None:
            rank.wait(**wait)
    job.run(seconds)
    assert job.verdicts == [verdict] * len(waits)
    assert len({str(rank.verdict) for rank in job.ranks if rank.diagnosis}) == 1


def test_a_rank_that_says_nothing_is_named_so_and_malformed_bytes_end_nothing() -> None:
    """It has not imported distmetrics; or its answering thread gets no turn: C code holds the interpreter, say."""
    for published, said in ("", "has no guard of distmetrics"), ("its own", "has not answered"), ("malformed", ""):
        job = Job(2)
        if not published:
            job.store.delete_key("at/1")
        for key in ("at/1", "said/1", "left/1", "verdict/world") if published == "malformed" else ():
            job.store.set(key, b"\xff{")
        job.ranks[1].deaf = published != "malformed"
        job.ranks[0].wait(timeout=2)
        job.run(3)
        assert job.verdicts == ["rank 1 did not come to a collective within 2 s", None]
        assert f"rank 1  {said}" in str(job.ranks[0].verdict)


def test_a_wait_that_ended_meanwhile_confirms_nothing() -> None:
    """What a status says may be old: only a rank that still waits in that very call makes a circle."""
    job = Job(2)
    job.ranks[0].wait("a")
    job.ranks[1].wait("b")
    job.run(0.2)  # both have published
    job.ranks[1].diagnosis = None  # it goes on, and has not said so yet
    job.run(3)
    assert job.verdicts == [None, None]


@pytest.mark.parametrize("failed", [True, False])
def test_a_departure_ends_the_wait_at_once(failed: bool) -> None:
    """Of a rank that has not made this call; one that has made it is welcome to leave."""
    job = Job(2)
    Tombstones(job.store).leave(Departure(1, "raised ValueError: x", failed, {"world": 1}))
    job.ranks[0].wait(call=1)
    job.run(5)
    assert job.verdicts == [None, None]
    job.ranks[0].go_on()
    job.ranks[0].wait(call=2)
    job.run(0.3)
    headline = "rank 1 failed and will never answer" if failed else "rank 1 has returned, and others still wait for it"
    assert job.verdicts == [headline, None]
    job.ranks[1].wait(call=7)  # who comes later hears the same: a group that is broken stays broken
    job.run(0.3)
    assert job.verdicts == [headline] * 2


def test_a_process_that_is_gone_or_stopped() -> None:
    """Whoever watches it gets a moment to say how it ended; a short stop is no verdict, one of three seconds is."""
    for state, short, verdict in (
        ("gone", 0.4, "the process of rank 1 is gone, and others wait"),
        ("stopped", 2.5, "rank 1 is stopped by a signal (SIGSTOP), and others wait"),
    ):
        job = Job(2)
        job.ranks[0].wait()
        for now in (state, "alive", state):
            job.states[1] = now
            job.run(short)
            assert job.verdicts == [None, None]
        job.run(2)
        assert job.verdicts == [verdict, None]


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize(
    ("still", "issued", "calls", "exactly", "is_stuck"),
    [
        (1.0, 4, 0, False, True),
        (0.0, 4, 0, False, False),  # it computes; it has sent to one rank more than this one, say
        (1.0, 3, 0, False, False),  # it waits in what this rank has issued as well
        (1.0, 4, 1, False, False),  # it has made the call: a broadcast's source is done first
        (0.0, 4, 0, True, True),  # collectives alone are counted
        (0.0, 3, 0, True, False),
    ],
)
def test_a_collective_of_torchs_own(
    still: float, issued: int, calls: int, exactly: bool, is_stuck: bool, is_watched: bool
) -> None:
    """The ranks can't meet once one has issued it in the place of the other's call.

    The advice is guard.watch(), but not to who uses it.
    """
    job = Job(3)
    bad = job.ranks[1]
    bad.where, bad.still = "is in a backward pass  train.py:3 in main", still
    bad.issued, bad.calls = {"world": issued}, {"world": calls}
    for rank in (0, 2):
        job.ranks[rank].wait(counts_exactly=exactly, is_watched=rank == 0 and is_watched)
    job.run(2)
    text = "rank 1 waits in a collective of torch.distributed, and this rank in another" if is_stuck else None
    assert job.verdicts == [text, None, text]
    if is_stuck:
        assert ("guard.watch()" in job.ranks[0].verdict.do) is not is_watched


_OF_ONE = r"\branks [-\d, ]*\d +(has|is|was|does|waits|its|it)\b"
_OF_SEVERAL = r"\branks? \d+ +(have|are|were|do|wait|their|they)\b"


@settings(max_examples=30)
@given(
    st.sets(st.integers(0, 4), min_size=1), st.sampled_from(["late", "gone", "stopped", "returned", "failed", "torch"])
)
def test_those_at_fault_are_named_and_verbs_agree_with_their_number(bad: set[int], how: str) -> None:
    job = Job(6)
    for rank in bad:
        job.ranks[rank].where = "is at train.py:7 in main"
        if how in ("gone", "stopped"):
            job.states[rank] = how
        elif how in ("returned", "failed"):
            departure = Departure(rank, "has returned" if how == "returned" else "was killed", how == "failed")
            Tombstones(job.store).leave(departure)
        elif how == "torch":
            job.ranks[rank].still, job.ranks[rank].issued = 1.0, {"world": 4}
    for rank in {*range(6)} - bad:
        job.ranks[rank].wait(timeout=10)
    job.run(12)
    verdict = job.ranks[5].verdict
    assert verdict is not None
    assert verdict.peers == tuple(sorted(bad))
    assert f"  {who(bad)} " in str(verdict)  # a line of its own
    assert not re.search(f"{_OF_ONE}|{_OF_SEVERAL}", str(verdict))


@pytest.mark.parametrize(
    ("other", "is_stuck"),
    [
        ({"still": 0.0}, False),  # it computes, and will come to the collective of rank 1
        ({"for_all": False}, True),  # it receives from rank 1, which sends nothing
        ({"deaf": True}, False),  # nobody knows
    ],
)
@pytest.mark.parametrize("exactly", [True, False])
def test_counts_of_sends_prove_nothing_while_a_rank_goes_on(
    other: dict[str, Any], is_stuck: bool, exactly: bool
) -> None:
    """Rank 1 is in a collective of ranks 1 and 2, and has sent more often than rank 0."""
    job = Job(3)
    for rank in (1, 2):
        vars(job.ranks[rank]).update(still=1.0, issued={"world": 5}, where="is in all_reduce  train.py:3 in main")
    vars(job.ranks[2]).update(other)
    job.ranks[0].wait(counts_exactly=exactly)
    job.run(3)
    assert (job.verdicts[0] is not None) == (is_stuck or exactly)


@pytest.mark.parametrize(("others", "still"), [(2, 1.0), (1, 0.3)])
def test_a_rank_that_goes_on_before_it_confirms_is_not_blamed(others: int, still: float) -> None:
    """It stands still when it is asked first; when it is asked anew, it has gone on."""
    job = Job(1 + others)
    for rank in job.ranks[1:]:
        rank.still, rank.issued = still, {"world": 4}
    job.ranks[0].wait()
    diagnosis = job.ranks[0].diagnosis
    assert diagnosis is not None
    job.run(5, until=lambda: bool(diagnosis._asked))
    job.ranks[-1].still = 0.0
    job.run(20)
    assert job.verdicts == [None] * (1 + others)


def test_a_rank_in_torchs_own_is_found_late_in_a_long_wait() -> None:
    job = Job(4)
    for rank in (0, 2, 3):
        job.ranks[rank].wait()
    job.run(60)
    assert job.verdicts == [None] * 4
    stuck_at = job.now
    job.ranks[1].issued = {"world": 4}
    while job.verdicts[0] is None:
        job.ranks[1].still = job.now - stuck_at
        job.run(0.05)
    assert job.now - stuck_at < 2.0


def test_in_a_large_world_three_find_out_and_all_hear_it() -> None:
    job = Job(200)
    for rank in job.ranks[:-1]:
        rank.wait(timeout=20)
    job.run(15)
    quiet = dict(job.store.calls)
    assert quiet["add"] <= 199 + 15 * 3 * 2  # each rank once; then the questions of three
    assert sum(rank.diagnosis is not None and rank.diagnosis._asks for rank in job.ranks) == 3
    job.run(15)
    assert job.verdicts[:-1] == ["rank 199 did not come to a collective within 20 s"] * 199
    text = str(job.ranks[0].verdict)
    assert "ranks 0-198  wait in" in text
    assert "rank 199     is at train.py:199 in main" in text


def test_the_store_forgets_a_wait_that_is_over() -> None:
    """A long run must not fill the store: what is left has one size, however many waits there were."""
    job = Job(70)

    def wait_once(number: int) -> int:
        for rank in job.ranks[1:]:
            rank.wait(call=number)
        job.run(2)
        for rank in job.ranks[1:]:
            rank.go_on()
        job.run(1)
        return job.store.num_keys()

    first = wait_once(1)
    assert [wait_once(number) for number in range(2, 7)] == [first] * 5


@given(st.data())
def test_ranks_that_only_take_their_time_are_never_blamed(data: st.DataObject) -> None:
    """Right programs with any delays, in groups that overlap: nobody hears a verdict before the deadline."""
    size = data.draw(st.integers(2, 4))
    job = Job(size)
    groups = {"world": [*range(size)], "pair": [0, 1]}
    order = data.draw(st.lists(st.sampled_from([*groups]), min_size=1, max_size=4))
    plan = {rank: [group for group in order if rank in groups[group]] for rank in range(size)}
    done = dict.fromkeys(range(size), 0)
    ready = {rank: data.draw(st.floats(0, 3)) + job.now for rank in range(size)}
    came: dict[int, tuple[str, int]] = {}
    while any(done[rank] < len(plan[rank]) for rank in range(size)):
        job.run(0.05)
        assert job.now < 1200
        for rank in set(range(size)) - came.keys():
            if done[rank] < len(plan[rank]) and job.now >= ready[rank]:
                group = plan[rank][done[rank]]
                came[rank] = group, plan[rank][: done[rank]].count(group) + 1
                job.ranks[rank].wait(group, "0-1" if group == "pair" else "", came[rank][1])
        assert job.verdicts == [None] * size
        complete = [place for place in came.values() if all(came.get(other) == place for other in groups[place[0]])]
        for other in groups[complete[0][0]] if complete else ():
            job.ranks[other].go_on()
            del came[other]
            done[other] += 1
            ready[other] = job.now + data.draw(st.floats(0, 3))


# --- the texts, which are those of texts.md -----------------------------------------------------------------------


def _ended(*waits: dict[str, Any], left: Departure | None = None, state: str = "alive", **rank_1: Any) -> str:
    """What ranks that wait are told; rank 1 may have left, be in a state, or be elsewhere."""
    job = Job(2)
    if left is not None:
        Tombstones(job.store).leave(left)
    job.states[1] = state
    vars(job.ranks[1]).update(rank_1)
    for rank, wait in zip(job.ranks, waits, strict=False):
        rank.wait(**wait)
    job.run(12.0)
    assert job.ranks[0].verdict is not None
    return str(job.ranks[0].verdict)


def _silent_store() -> str:
    """A store that has been asked, and has not answered."""
    watchdog = Watchdog.__new__(Watchdog)
    rank = Job(2).ranks[0]
    watchdog._me, watchdog._store, watchdog.settings = rank.me, rank.store, Settings()
    watchdog._known = {}
    watchdog._store._since = time.monotonic() - 60.2
    call = Call('all_gather "val/f1"', "float32[10]", Site("train.py", 11, "main"))
    verdict = watchdog._silence(PendingCall(call, "world", "0-1", 1, "all_gather"))
    assert verdict is not None
    return str(verdict)


def _direct() -> str:
    def refuse(comm: Any) -> None:
        kind = "all_reduce sum float32[4]" if comm.rank else "all_reduce sum int32[4]"
        comm.state.direct_calls.extend(["barrier  train.py:3 in main", f"{kind}  train.py:4 in main"])
        raise refuse_histories(comm)

    return str(outcomes(2, refuse)[0].error)


def _interrupted() -> str:
    call = Call("all_reduce sum", site=Site("train.py", 21, "validate"))

    def leave(comm: Any) -> str:
        break_after(comm, call, "TimeoutError")
        return str(comm.state.verdict)

    with mock.patch("distmetrics.comm.communicator.call_site", return_value=None):
        return outcomes(2, leave)[1].value


FAILED = Departure(1, "raised ValueError: a bad batch  train.py:7 in step", failed=True)
RETURNED = Departure(1, "has returned", failed=False)
IN_TORCH = {"where": "is in torch.distributed.all_reduce  train.py:3 in main", "still": 1.0, "issued": {"world": 4}}
TEXTS: dict[str, Callable[[], str]] = {
    "A rank is late": lambda: _ended({"timeout": 10}),
    "All came, and it does not end": lambda: _ended({"timeout": 10}, {"timeout": 10}),
    "A rank failed": lambda: _ended({}, left=FAILED),
    "A rank has returned": lambda: _ended({}, left=RETURNED),
    "A process is gone": lambda: _ended({}, state="gone"),
    "A process is stopped": lambda: _ended({}, state="stopped"),
    "A deadlock of groups": lambda: _ended({"group": "a"}, {"group": "b"}),
    "Different calls in the same place": lambda: _ended({"kind": "all_reduce sum"}, {"kind": "barrier"}),
    "A collective of torch's own": lambda: _ended({}, **IN_TORCH),
    "Another number of torch's own": lambda: _ended({"counts_exactly": True}, {"counts_exactly": True, "issued": 4}),
    "The store does not answer": _silent_store,
    "Direct calls that differ": _direct,
    "A call was interrupted": _interrupted,
}
TEXTS_FILE = Path(__file__).with_name("texts.md").read_text()
SHOWN = dict(re.findall(r"^## (.+?)\n.*?^```text\n(.*?)\n```", TEXTS_FILE, flags=re.MULTILINE | re.DOTALL))
PAGE = (Path(__file__).parents[2] / "docs/errors.md").read_text()
ROWS = [cell.split(" … ") for cell in re.findall(r"^\| ([^|`]+) \| ", PAGE, flags=re.MULTILINE) if cell != "text"]


@pytest.mark.parametrize("title", TEXTS)
def test_a_text_is_as_the_file_shows_it_and_the_page_explains_it(title: str) -> None:
    """Word for word; a verdict that nobody explains is half an error."""
    assert SHOWN.keys() == TEXTS.keys()
    text = TEXTS[title]()
    assert text == SHOWN[title]
    first = text.partition("\n")[0]
    assert [row for row in ROWS if all(part in first for part in row)] != []
