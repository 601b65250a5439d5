"""The guard's one connection to a store that is slow, dead, or not there for every rank."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import psutil
import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from distmetrics.comm.communicator import Call
from distmetrics.comm.process_group import GroupCommunicator, PendingCall
from distmetrics.guard import watchdog
from distmetrics.guard.process_info import this_process
from distmetrics.guard.settings import Settings
from distmetrics.guard.store import GuardStore, Identity, Wait
from distmetrics.guard.watchdog import Watchdog


def serve(pipe: Connection) -> None:
    """Have a store until the process is killed."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    pipe.send(store.port)
    signal.pause()


class Host:
    """A store in a process of its own, a connection of this process to it, and the guard of rank 0 of two."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        with ours, theirs:
            self.process = context.Process(target=serve, args=(theirs,), daemon=True)
            self.process.start()
            self.port = ours.recv()
        long = timedelta(seconds=60)
        self.store = dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=long)  # type: ignore[attr-defined]
        self.store.set_timeout(timedelta(seconds=3))  # a guard's thread may wait so long at the end of a test
        self.made: list[Watchdog] = []

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def connections(self) -> int:
        """How many this process has to it."""
        mine = psutil.Process().net_connections()
        return sum(each.raddr != () and each.raddr.port == self.port for each in mine)

    def guard(self, connects: bool = True) -> Watchdog:
        me = Identity(0, 2, this_process().but(machine=""), "world")
        self.made.append(Watchdog(GuardStore(self.store, me), Settings(), None))
        assert not connects or self.made[-1].connected.wait(60)
        return self.made[-1]

    def close(self) -> None:
        for each in self.made:
            each._closed.set()
            each._bell.set()
            each._store.error = "over"  # so it says no goodbye
        self.process.kill()  # nobody who waits for an answer gets one any more
        self.process.join()
        for each in self.made:
            each._thread.join(10)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(watchdog, "SILENT", 0.2)
    made = Host()
    yield made
    made.close()


def eventually(look: Callable[[], Any], seconds: float = 30) -> Any:
    """What a function returns, once that is something."""
    until = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def verdict_of(guard: Watchdog, seconds: float = 30) -> str:
    """What the guard says of a call that it is asked about."""
    pending = PendingCall(Call("all_gather", "float32[2]", None), "world", "0-1", 1, "all_gather")
    assert guard.look(pending) is None
    return str(eventually(lambda: guard.look(pending), seconds))


def test_a_guard_has_one_connection_and_nobody_waits_for_a_store_that_is_slow(host: Host) -> None:
    """The user goes on at once, there is no verdict, and the guard is there once the store answers.

    Each connection more is a question to the name server in the store's only thread.
    """
    before = host.connections()
    host.send(signal.SIGSTOP)
    guard = host.guard(connects=False)  # who asks the store here gets an error after 3 s
    assert verdict_of(guard, 2) == "None"
    assert not guard.connected.wait(0)
    host.send(signal.SIGCONT)
    assert guard.connected.wait(60)
    assert host.connections() == before + 1


@pytest.mark.parametrize("how", ["killed", "killed before", "stopped"])
def test_a_store_that_is_dead_or_silent_for_long_is_told(host: Host, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens where it was; one on another machine that is stopped takes connections all the same."""
    monkeypatch.setattr(watchdog, "SILENT_AT_MOST", 1.0 if how == "stopped" else watchdog.SILENT_AT_MOST)
    guard = host.guard() if how != "killed before" else None
    host.send(signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
    if how != "stopped":
        host.process.join()
    said = verdict_of(guard or host.guard(connects=False))
    assert said.startswith("the job's key-value store does not answer")


def test_a_broken_connection_is_made_again_and_all_hear_of_a_rank_without_a_guard(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store lives: who waits must not hear that it is dead.

    Here rank 1 of two has no guard: both have made the second call, and it has not said who it is.
    """
    monkeypatch.setattr(watchdog, "GUARDED", 0.2)
    guard = host.guard()
    broken = mock.Mock(**{"check.side_effect": RuntimeError("Connection reset by peer")})
    guard._store.store = broken
    guard._bell.set()
    assert eventually(lambda: guard._store.store is not broken)
    assert eventually(lambda: not guard._store.error)
    guard._store.publish(None)
    guard.log.counts["world"] = 2
    assert eventually(lambda: "no guard watches rank 1: " in caplog.text)


def test_that_nobody_watches_is_said_once_and_not_for_each_group(caplog: pytest.LogCaptureFixture) -> None:
    """A store for tests can't be connected to a second time."""
    watchdog._warn_unwatched.cache_clear()
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        for group in (dist.group.WORLD, dist.new_group([0, 1])):
            GroupCommunicator.of(group)
    finally:
        dist.destroy_process_group()
    assert [record.getMessage()[:31] for record in caplog.records] == ["distmetrics watches no rank of "]


@pytest.mark.parametrize("waits", [True, False])
def test_rank_0_stays_at_its_end_for_those_that_wait(host: Host, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    """Another rank may have no guard, or go on alone for long: that holds nobody up."""
    monkeypatch.setattr(watchdog, "_FAREWELL", 1.5)
    guard = host.guard()
    other = GuardStore(host.store, Identity(1, 2, this_process(), "world"))
    other.publish(Wait(1, "world", "0-1", 1, "barrier", "barrier") if waits else None)
    begun = time.monotonic()
    guard.close()
    assert (time.monotonic() - begun >= 1.5) == waits
