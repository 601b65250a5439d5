"""The numbers in docs/guard.md that no other test holds."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from distmetrics.cli.postmortem import merge, read
from distmetrics.comm.communicator import Call
from distmetrics.comm.process_group import PendingCall
from distmetrics.errors import Site
from distmetrics.guard.call_log import CallLog
from distmetrics.guard.diagnosis import FIRST_LOOK
from distmetrics.guard.process_info import this_process
from distmetrics.guard.report import ReportWriter
from distmetrics.guard.store import GuardStore, Identity

ME = Identity(0, 2, this_process(), "world")


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
    log.begin_call(PendingCall(Call("barrier"), "world", "0-1", 1, "barrier"))
    reports.write()
    assert error() is None
    reports.write(ValueError("broken"))
    reports.write(ValueError("raised while that one was handled"))
    reports.write()
    assert error() == "broken"


def test_what_a_users_error_calls_its_peers_is_no_business_of_a_report(tmp_path: Path) -> None:
    error = ValueError("a bad batch")
    error.peers = [object()]  # type: ignore[attr-defined]
    ReportWriter(tmp_path, ME, CallLog()).write(error)
    assert json.loads((tmp_path / "rank-0.json").read_text())["error"]["peers"] == []


def test_a_report_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or not at all."""
    reports = ReportWriter(tmp_path, ME, CallLog())
    reports.write()
    before = (tmp_path / "rank-0.json").read_text()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    reports.write(ValueError("a bad batch"))
    assert (tmp_path / "rank-0.json").read_text() == before


def test_a_name_that_is_no_text_is_written_by_its_bytes(tmp_path: Path) -> None:
    """Such as that of a file which another encoding named; Python has it with lone surrogates."""
    log = CallLog()
    log.begin_call(PendingCall(Call("barrier", site=Site("tr\udcffin.py", 1, "f")), "world", "0-1", 1, "barrier"))
    ReportWriter(tmp_path, ME, log).write()
    assert merge(read(tmp_path)).reports[0].calls[0].site == "tr\\udcffin.py:1 in f"


def test_before_its_first_call_a_rank_is_where_its_main_thread_is() -> None:
    """The guard is made in a thread of its own."""
    logs: list[CallLog] = []
    thread = threading.Thread(target=lambda: logs.append(CallLog()))
    thread.start()
    thread.join()
    assert "test_promises.py" in str(logs[0].place())


def test_a_rank_is_where_the_thread_is_that_has_made_its_last_call() -> None:
    """A framework may run the user's loop in a thread of its own."""
    log, called, seen = CallLog(), threading.Event(), threading.Event()

    def loop() -> None:
        log.begin_call(PendingCall(Call("barrier"), "world", "0-1", 1, "barrier"))
        called.set()
        seen.wait(60)

    thread = threading.Thread(target=loop)
    thread.start()
    called.wait(60)
    place = str(log.place())
    seen.set()
    thread.join()
    assert place.endswith(" in loop")


def test_a_rank_publishes_what_it_waits_in_after_150_ms() -> None:
    assert FIRST_LOOK == 0.15


@pytest.mark.parametrize("world_size", [2, 64, 400, 4096])
def test_ranks_look_ten_times_a_second_and_never_more_than_4000_times_in_all(world_size: int) -> None:
    pause = GuardStore(dist.HashStore(), ME._replace(world_size=world_size)).pause
    assert pause >= 0.1
    assert world_size / pause <= 4000
