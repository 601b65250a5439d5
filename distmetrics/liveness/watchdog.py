"""The guard of one rank: two threads that are quiet while all is well.

One answers where this rank's thread is when another rank asks. One finds out why this rank waits,
once it has waited for a while. The user's thread never touches the store: it writes down what it
calls, and while it waits it looks whether there is a verdict. A store that does not answer is a
verdict as well.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from distmetrics.errors import DistmetricsError
from distmetrics.liveness.departures import Departure, Departures, reason
from distmetrics.liveness.diagnosis import Diagnosis, first_look
from distmetrics.liveness.guard_store import ALL_ASK, GuardStore, within
from distmetrics.liveness.last_words import LastWords, end_surely
from distmetrics.liveness.process_info import Stillness, machine, process_state, this_process
from distmetrics.liveness.rank_report import CallLog, PendingCall, ReportWriter
from distmetrics.liveness.rank_status import Answer, Identity, RankStatus, Wait
from distmetrics.liveness.settings import Settings, in_force
from distmetrics.liveness.verdict import Verdict, silent_store

STORE_SILENT = 4.0  # seconds in which a call of the store must be done while a rank waits
_FIRST_ANSWER = 10.0  # seconds in which the job's store must answer a rank's first call
_LAST = 1.0  # seconds at the end for the threads, which a silent store may hold
_FAREWELL = 3.0  # seconds at the end in which rank 0 stays for the others
_MOMENT = 0.01  # seconds between two looks whether the others have left
_SOON = 0.1  # seconds between two looks whether all ranks have come
_RETRY = 0.5  # seconds after which a store that failed is tried again
_log = logging.getLogger("distmetrics.guard")


class Watchdog:
    """Watches one rank, and lets it know why it waits.

    Args:
        me: that rank.
        store: of the job; the guard uses connections of its own.
        settings: what to do, and how long a rank may wait.
        departures: where they are published; None where nobody else does so for this rank.
    """

    def __init__(
        self, me: Identity, store: Any, settings: Settings, departures: Departures | None
    ) -> None:
        self.settings = settings
        self.log = CallLog()
        self.reports = ReportWriter(settings.report, me, self.log)
        self._me = me
        self.patience = first_look(self._me)
        self._says_goodbye = departures is None
        published: Any = PrefixStore("board", store) if departures is None else departures.store
        self._departures = Departures(published.clone())
        self._held: Any = store  # a store that rank 0 hosts ends with its last holder
        guard: Any = PrefixStore("guard", store)
        self._asking = GuardStore(guard.clone(), me.rank, me.world_size)
        self._answering = GuardStore(guard.clone(), me.rank, me.world_size)
        self._open: deque[tuple[PendingCall, Diagnosis]] = deque()
        self._bell, self._closed = threading.Event(), threading.Event()
        self._busy_since: float | None = None
        self._store_error = ""
        self._last_words: LastWords | None = None
        self._known: dict[int, RankStatus] = {}
        self._asking.publish(self._me.status(None))
        self._threads = [
            _thread("why this rank waits", self._find_out),
            _thread("where this rank is", self._respond),
        ]
        atexit.register(self.close)

    def leave(self, pending: PendingCall, *, begun: bool = True) -> None:
        """Note that the call is over, or was never begun."""
        self.log.leave(pending, begun=begun)
        if pending.watched:
            self._bell.set()

    def look(self, pending: PendingCall) -> Verdict | None:
        """Return why a call can't end, as far as is known; the first look starts the diagnosis."""
        if not pending.watched:
            pending.watched = True
            self._open.append((pending, self._diagnosis(pending)))
            self._bell.set()
            return None
        verdict = pending.verdict or self._silence(pending)
        if verdict is None or self.settings.mode != "warn":
            return verdict
        if not pending.warned:
            pending.warned = True
            _log.warning("%s", verdict)
        return None

    def fail(self, error: DistmetricsError) -> None:
        """Write this rank's report, and ask the error's peers for theirs: its group is broken."""
        end_surely()
        self.reports.write(error, final=True)
        if self.settings.report is not None and not self._store_error:
            within(_LAST, lambda: [self._asking.ask(peer, report=True) for peer in error.peers])

    def depart(self, why: str) -> None:
        """Tell the others that this rank makes no further call."""
        if os.getpid() == self._me.pid:
            within(_LAST, lambda: self._leave(why, failed=True))

    def close(self) -> None:
        """End the threads: the process ends, or its group is gone."""
        if self._closed.is_set() or os.getpid() != self._me.pid:
            return  # the end of a forked child is not that of the rank
        self._closed.set()
        self._bell.set()
        atexit.unregister(self.close)
        if self._last_words is not None:
            self._last_words.close()
        if self._says_goodbye:
            raised = getattr(sys, "last_value", None)  # what ended the script, if something did
            if raised is not None:
                self.reports.write(raised)
            within(_FAREWELL + _LAST, lambda: self._say_goodbye(raised))
        for thread in self._threads:
            thread.join(_LAST)
        self._held = None

    @property
    def store_failed(self) -> bool:
        """True if the job's store can't be asked."""
        return bool(self._store_error)

    def gone(self) -> list[int]:
        """Return the ranks of this machine whose processes are gone, without asking the store."""
        return [
            rank
            for rank, status in self._known.items()
            if status.machine == self._me.machine != ""
            and process_state(status.pid, status.born) == "gone"
        ]

    def speak_last(self) -> None:
        """Have the report written before SIGTERM ends the process; called in the main thread."""
        if self.settings.report is not None and os.name == "posix":
            self._last_words = LastWords(self.reports.write)

    def _say_goodbye(self, raised: BaseException | None) -> None:
        self._leave(reason(raised), failed=raised is not None)
        with contextlib.suppress(RuntimeError):
            self._asking.goodbyes(1)
            # Rank 0 may host the store, and a rank that is in it then aborts.
            until = time.monotonic() + _FAREWELL
            while self._me.rank == 0 and time.monotonic() < until:
                if self._asking.goodbyes() >= self._me.world_size:
                    break
                time.sleep(_MOMENT)

    def _leave(self, why: str, *, failed: bool) -> None:
        # The store may be gone, with the process that hosts it.
        with contextlib.suppress(RuntimeError):
            self._departures.leave(Departure(self._me.rank, why, failed, {**self.log.counts}))

    def _silence(self, pending: PendingCall) -> Verdict | None:
        """Return a verdict where the store has not answered for too long."""
        since = self._busy_since
        if since is None or (seconds := time.monotonic() - since) < STORE_SILENT:
            return None
        doing = f"waits in {pending.call}"
        return silent_store(self._me.rank, doing, seconds, self._store_error)

    def _diagnosis(self, pending: PendingCall) -> Diagnosis:
        text = str(pending.call)
        if pending.group != self._me.world:
            text += f"  (group of ranks {pending.members})"
        place = pending.group, pending.members, pending.number, pending.kind
        issued = self.log.issued().get(pending.group)
        if issued is not None:
            issued -= 1  # this call is the last of them
        exact = pending.group in self.log.counts_exactly
        wait = Wait(pending.serial, *place, text, self.log.alone, issued, exact)
        begun = time.monotonic() - (time.time() - pending.started)
        timeout = self.settings.timeout
        return Diagnosis(self._me, wait, timeout, self._asking, self._departures, begun)

    def _get_to_know_ranks(self) -> None:
        """Read who the others are, for when the store can't be asked any more."""
        with contextlib.suppress(RuntimeError):  # the first wait will find that out again
            while len(self._known) < self._me.world_size and not self._open:
                if self._closed.wait(_SOON):
                    break
                self._known = self._asking.statuses()

    def _find_out(self) -> None:
        if self._me.world_size <= ALL_ASK:
            self._get_to_know_ranks()
        while not self._closed.is_set():
            delays = []
            for pending, diagnosis in [*self._open]:
                try:
                    delays.append(self._step(pending, diagnosis))
                except RuntimeError as error:  # of the store: a silence, if it lasts
                    self._store_error = str(error).strip().partition("\n")[0]
                    delays.append(_RETRY)
            self._bell.wait(min(delays, default=None))
            self._bell.clear()

    def _step(self, pending: PendingCall, diagnosis: Diagnosis) -> float:
        """Look once at a call that lasts; return after how many seconds to look again."""
        now, delay = time.monotonic(), _RETRY
        if self._busy_since is None:
            self._busy_since = now
        if pending.ended is not None:
            diagnosis.close()
            self._open.remove((pending, diagnosis))
        elif diagnosis.verdict is None:
            delay = diagnosis.step(now)
            pending.verdict = diagnosis.verdict
        self._busy_since, self._store_error = None, ""
        return delay

    def _respond(self) -> None:
        stillness = Stillness()
        # Where the store is gone, whoever waits finds that out by itself.
        with contextlib.suppress(RuntimeError):
            while (question := self._answering.next_question(self._closed)) is not None:
                place = self.log.place()
                may_be_stuck = place.waits_for_all and self.log.alone
                still = stillness.seconds(str(place)) if may_be_stuck else 0.0
                issued = self.log.issued()  # read before the calls of which it may be one
                answer = question, self.log.waits(), str(place), still, issued, {**self.log.counts}
                self._answering.answer(Answer(*answer))
                if self.settings.report is not None and self._answering.report_wanted():
                    self.reports.write()


def _thread(name: str, target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, name=f"distmetrics: {name}", daemon=True)
    thread.start()
    return thread


# By the group of all ranks.
_watchdogs: weakref.WeakKeyDictionary[Any, Watchdog] = weakref.WeakKeyDictionary()


def report_all() -> None:
    """Write this rank's report, where one is wanted: the process is about to be ended."""
    for watchdog in [*_watchdogs.values()]:
        watchdog.reports.write()


def watchdog_of_job(departures: Departures | None) -> Watchdog | None:
    """Return the guard of this rank, which watches all its groups, or None if it is switched off.

    It is made with the rank's first communicator.
    """
    world: Any = dist.group.WORLD
    watchdog = _watchdogs.get(world)
    settings = in_force()
    if watchdog is not None or settings.mode == "off" or dist.get_world_size() == 1:
        return watchdog
    store = world.get_group_store() if departures is None else departures.store
    place = dist.get_rank(), dist.get_world_size()
    me = Identity(*place, machine(), *this_process(), world.group_name)

    def make() -> Watchdog | str:
        try:
            return Watchdog(me, store, settings, departures)
        except RuntimeError as error:  # a store that can't be cloned: of a backend for tests, say
            return str(error)

    made = within(_FIRST_ANSWER, make) or f"nothing within {_FIRST_ANSWER:g} s"
    if isinstance(made, str):
        text = f"distmetrics watches no rank of this job: its store says {made}"
        warnings.warn(text, stacklevel=4)
        return None
    if threading.current_thread() is threading.main_thread():
        made.speak_last()
    _watchdogs[world] = made
    weakref.finalize(world, made.close)
    return made
