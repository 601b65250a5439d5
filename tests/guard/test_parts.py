"""The small parts of the guard: settings, messages, how ranks leave, where a thread is, and what is reported."""

from __future__ import annotations

import json
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.nn.parallel.distributed as wrapper
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import graph

from distmetrics import ConfigurationError
from distmetrics.cli.postmortem import merge, read
from distmetrics.comm.communicator import Call
from distmetrics.comm.process_group import PendingCall
from distmetrics.comm.verdict import Departure, Outcome, settle
from distmetrics.errors import DivergedError, PeerLostError, Site, rank_ranges
from distmetrics.guard import store
from distmetrics.guard.call_log import CallLog
from distmetrics.guard.process_info import Place, ProcessId, Stillness, this_process
from distmetrics.guard.report import ReportWriter
from distmetrics.guard.settings import Settings, current_settings, use_settings
from distmetrics.guard.store import Answer, Identity, RankStatus, Tombstones, Wait
from distmetrics.launch.joining import meet
from distmetrics.message import Message, encode

# --- settings and messages ------------------------------------------------------------------------------------------


def test_the_environment_is_read_and_settings_of_a_block_end_with_it() -> None:
    """Capitals and spaces do no harm; a block ends also after an error."""
    assert Settings.of_environment({"DISTMETRICS_GUARD": " Strict "}) == Settings("strict")
    for name, value, text in (
        ("DISTMETRICS_GUARD", "yes", "no such mode: 'yes'\nDo:     say off, warn, on, strict."),
        ("DISTMETRICS_TIMEOUT", "nan", "not a time in seconds: nan"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(f"{name}: {text}")):
            Settings.of_environment({name: value})
    before = current_settings()
    with pytest.raises(ConfigurationError), use_settings(timeout=7), use_settings(timeout=0):
        pass
    assert current_settings() == before


texts = st.text(max_size=20)
ranks = st.sets(st.integers(0, 3000), max_size=5).map(rank_ranges)
waits = st.builds(Wait, st.integers(1, 1 << 40), texts, ranks, st.integers(1, 1 << 40), texts, texts)
processes = st.builds(ProcessId, texts, st.integers(1, 1 << 22), texts)
statuses = st.builds(RankStatus, processes, st.none() | waits)
answers = st.builds(Answer, st.integers(1, 99), st.integers(-9, 9), texts)


@given(statuses | answers, st.binary(max_size=40), st.sampled_from([RankStatus, Answer, Departure]))
def test_messages_come_back_and_malformed_bytes_are_none(
    message: RankStatus | Answer, data: bytes, kind: type[Message]
) -> None:
    """Any text may stand in a name or a path; what is malformed is told in the log, and ends nothing."""
    assert store.read(type(message), encode(message)) == message
    for each in (data, encode(message)):
        assert isinstance(store.read(kind, each), kind | None)


# --- how ranks leave ------------------------------------------------------------------------------------------------


def test_departures_are_handed_out_in_order_and_in_the_ranks_own_words() -> None:
    """Two views of one store see the same; a rank that raised says why, and its exit code says less."""
    made = dist.HashStore()
    writer, reader = Tombstones(made), Tombstones(made)
    assert reader.published() == []
    gone = [Departure(2, "raised KeyError", True, {"world": 4}), Departure(0, "has returned", False, {"world": 7})]
    for departure in gone:
        writer.leave(departure)
    assert reader.published() == gone == writer.published()
    writer.leave_for(2, "ended with exit code 1")
    writer.leave_for(1, "was killed by SIGKILL")
    assert [(each.rank, each.why) for each in reader.published()[2:]] == [(1, "was killed by SIGKILL")]


@pytest.mark.parametrize("came", [True, False])
def test_a_rank_that_failed_after_all_had_come_does_not_undo_the_meeting(came: bool) -> None:
    """The last to come may fail between another's two looks, at who is in and at who has left."""
    made, departures = dist.HashStore(), Tombstones(dist.HashStore())

    def looks(keys: list[str]) -> bool:
        """The first look of rank 0 is over before rank 1 came, failed, and said so."""
        found = made.check(keys)
        if not departures.published():
            if came:
                meet(made, departures, 1, 2)
            departures.leave(Departure(1, "raised KeyError", failed=True))
        return bool(found)

    slow = mock.Mock(wraps=made, check=looks)
    if came:
        meet(slow, departures, 0, 2)
        return
    with pytest.raises(PeerLostError, match="rank 1 failed before the world was complete: raised KeyError"):
        meet(slow, departures, 0, 2)


@pytest.mark.parametrize(
    ("errors", "cause"),
    [
        ([PeerLostError("x"), DivergedError("y"), KeyError("z")], 2),
        ([PeerLostError("x"), DivergedError("y"), None], 1),
        ([None, PeerLostError("x"), PeerLostError("y")], 1),
        ([ValueError("first"), KeyError("second"), None], 0),
    ],
)
def test_settle_raises_the_cause(errors: list[Exception | None], cause: int) -> None:
    """Ranks that were let down come last, then ranks that waited in vain; among equals the lowest rank."""
    with pytest.raises(type(errors[cause])) as caught:
        settle([Outcome(rank, error=error) for rank, error in enumerate(errors)])
    assert caught.value is errors[cause]
    assert caught.value.__notes__[0] == f"raised on rank {cause}"


# --- where a thread is ----------------------------------------------------------------------------------------------


def _frame(file: str, name: str) -> Any:
    return SimpleNamespace(f_code=SimpleNamespace(co_filename=file, co_name=name), f_locals={}, f_lineno=3, f_back=None)


@pytest.mark.parametrize(
    ("file", "name", "doing", "waits"),
    [
        (graph.__file__, "f", "a backward pass or DistributedDataParallel", True),
        (wrapper.__file__, "f", "a backward pass or DistributedDataParallel", True),
        (c10d.__file__, "all_reduce", "torch.distributed.all_reduce", True),
        (c10d.__file__, "recv", "torch.distributed.recv", False),  # which waits for one rank
        (c10d.__file__, "batch_isend_irecv", "torch.distributed.batch_isend_irecv", False),
        (c10d.__file__, "__init__", None, False),  # no function for users: it may read a file, say
        (c10d.__file__, "_exception_logger", None, False),
        (__file__, "f", "", False),  # a hook or a model's forward, which may take as long as it likes
    ],
)
def test_who_waits_for_all_ranks(file: str, name: str, doing: str | None, waits: bool) -> None:
    place = Place.of(_frame(file, name))
    assert place.waits_for_all == waits
    assert doing is None or place.doing == doing
    assert str(Place.of(sys._getframe())).startswith("is at tests/guard/test_parts.py:")
    assert str(Place.of(None)) == "is in no code of the user's"
    assert str(Place([], None, "the backward pass")) == "is in the backward pass"


def test_of_a_library_the_innermost_line_is_told() -> None:
    """Else a framework's own frames are all that a stack of a few lines has room for."""
    loop: dict[str, Any] = {}
    exec(compile("def step(f): return f()\ndef fit(f): return step(f)", "/lib/site-packages/fw/loop.py", "exec"), loop)
    place = loop["fit"](lambda: loop["fit"](lambda: Place.of(sys._getframe())))
    assert [site.function for site in place.stack[:5]] == [
        "<lambda>", "step", "<lambda>", "step", "test_of_a_library_the_innermost_line_is_told",
    ]  # fmt: skip
    assert place.at == place.stack[0]


def test_a_thread_that_computes_does_not_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that uses no processor stands still, at one place."""
    now, used = [100.0], [3.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.clock_gettime", lambda clock: used[0])
    stillness, found = Stillness(), []
    for place, more_used in (("here", 0), ("here", 0), ("here", 0.001), ("there", 0), ("there", 0.5), ("there", 0)):
        now[0] += 1
        used[0] += more_used
        found.append(stillness.seconds(place))
    assert found == [0, 1, 2, 0, 0, 1]


def test_a_rank_is_where_its_main_thread_is_and_then_where_its_last_call_was_made() -> None:
    """The guard is made in a thread of its own; a framework may run the user's loop in another."""
    called, seen = threading.Event(), threading.Event()

    def loop() -> None:
        log.begin_call(BARRIER)
        called.set()
        seen.wait(60)

    with ThreadPoolExecutor(1) as pool:
        log = pool.submit(CallLog).result()
        assert "test_parts.py" in str(log.place())
        pool.submit(loop)
        called.wait(60)
        place = str(log.place())
        seen.set()
    assert place.endswith(" in loop")


# --- what is reported -----------------------------------------------------------------------------------------------

ME = Identity(0, 2, this_process(), "world")
BARRIER = PendingCall(Call("barrier", site=Site("tr\udcffin.py", 1, "f")), "world", "0-1", 1, "barrier")


def test_an_error_stands_until_the_rank_makes_a_further_call(tmp_path: Path) -> None:
    """One that was caught long ago is not why the job has ended; what broke the group is."""
    log = CallLog()
    reports = ReportWriter(tmp_path, ME, log)

    def error() -> object:
        written = json.loads((tmp_path / "rank-0.json").read_text())["error"]
        return written and written["text"]

    reports.write(ValueError("caught"))
    reports.write(SystemExit(1))  # the script ends by an exit code
    reports.write()
    assert error() == "caught"
    log.begin_call(BARRIER)
    reports.write()
    assert error() is None
    reports.write(ValueError("broken"))
    reports.write(ValueError("raised while that one was handled"))
    reports.write()
    assert error() == "broken"


def test_a_report_is_whole_or_not_at_all_and_bears_odd_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is no text is written by its bytes; what a user's error calls its peers is no business of it."""
    log = CallLog()
    log.begin_call(BARRIER)
    error = ValueError("a bad batch")
    error.peers = [object()]  # type: ignore[attr-defined]
    reports = ReportWriter(tmp_path, ME, log)
    reports.write(error)
    before = (tmp_path / "rank-0.json").read_text()
    assert json.loads(before)["error"]["peers"] == []
    assert merge(read(tmp_path)).reports[0].calls[0].site == "tr\\udcffin.py:1 in f"

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    log.begin_call(BARRIER)
    reports.write()
    assert (tmp_path / "rank-0.json").read_text() == before
