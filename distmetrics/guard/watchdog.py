"""The guard of one rank: a thread that is quiet while all is well.

When another rank asks, it answers where this rank's thread is. Once this rank has waited for a
while, it finds out why. The user's thread never touches the store: it notes what it calls, and
while it waits it looks whether there is a verdict, or whether the store is dead.
"""

import atexit
import contextlib
import functools
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from distmetrics.comm.patching import replace_everywhere
from distmetrics.comm.process_group import (
    NAMING_GRACE,
    PendingCall,
    Watcher,
    counter_of,
    watch_by,
    watching,
)
from distmetrics.comm.verdict import Departure, Verdict, departed, reason, silent_store, what_ended
from distmetrics.errors import first_line, who
from distmetrics.guard.call_log import CallLog
from distmetrics.guard.diagnosis import ALL_ASK, FIRST_LOOK, Diagnosis
from distmetrics.guard.process_info import Stillness, process_state, this_process
from distmetrics.guard.report import ReportWriter, report_before_sigterm
from distmetrics.guard.settings import MODE, Settings, current_settings
from distmetrics.guard.store import (
    Answer,
    GuardStore,
    Identity,
    RankStatus,
    Tombstones,
    Wait,
    within,
)

SILENT = 4.0  # seconds after which a silent store is looked into
SILENT_AT_MOST = 60.0  # seconds in which a store that takes connections must answer
GUARDED = 30.0  # seconds after which a rank without a guard is told of
_LAST = 1.0  # seconds at the end for the thread, which a silent store may hold
_FAREWELL = 3.0  # seconds at the end in which rank 0 stays for others that wait
_UNSEEN = 0.5  # seconds of it in which another rank that waits has surely said so
_ENDS_WITHIN = 1.0  # seconds after an exception in which the process most often ends
_MOMENT = 0.01  # seconds between two looks whether the others have left
_RETRY = 0.5  # seconds after which a store that failed is tried again
_log = logging.getLogger("distmetrics.guard")


class Watchdog(Watcher):
    """Watches one rank, and lets it know why it waits.

    ``connected`` is set while it can ask and answer. Without the ``board`` of a launcher, on which
    ranks leave tombstones, nobody else says that this rank has left.
    """

    grace, patience = NAMING_GRACE, FIRST_LOOK

    def __init__(self, store: GuardStore, settings: Settings, board: Tombstones | None) -> None:
        self._store, self._me, self._board = store, store.me, board
        self.log = self.calls = CallLog()
        self.follow(settings)
        # Read until all are known; those of a large world are too many for that.
        self._known: dict[int, RankStatus] = {}
        self._reads_who_is_here = self._me.world_size <= ALL_ASK
        self._all_by = math.inf
        self._open: deque[tuple[PendingCall, Diagnosis]] = deque()
        self._bell = self.log.over
        self._closed, self.connected = threading.Event(), threading.Event()
        self._stillness = Stillness()
        self._thread = threading.Thread(target=self._watch, name="distmetrics guard", daemon=True)
        self._thread.start()
        self.is_used = False  # by a communicator
        atexit.register(self.close)

    def follow(self, settings: Settings) -> None:
        """Take over settings: those of the rank's first communicator may come later than this."""
        self.settings = settings
        self.reports = ReportWriter(settings.report, self._me, self.log)
        if settings.report is not None and os.name == "posix":
            report_before_sigterm()

    # What the user's thread calls.

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

    look_after_loss = look  # which all ranks hear alike

    def departed(self, doing: str) -> Verdict | None:
        """Return that ranks have said that they leave, or that a launcher has said so for them."""
        published: list[Departure] = []
        if self._board is not None:
            with contextlib.suppress(RuntimeError):
                published = self._board.published()
        left = {gone.rank: gone for gone in published if gone.rank != self._me.rank}
        return departed(left, {self._me.rank: doing}) if left else None

    def leave_job(self, why: str, *, failed: bool) -> None:
        """Publish that this rank leaves the job, where its launcher reads it."""
        if self._board is not None:
            self._leave(self._board, why, failed)

    def _leave(self, board: Tombstones, why: str, failed: bool) -> None:
        # The store may be gone, with the process that hosts it.
        with contextlib.suppress(RuntimeError):
            board.leave(Departure(self._me.rank, why, failed, {**self.log.counts}))

    def gone(self) -> list[int]:
        """Return the ranks of this machine whose processes are gone."""
        return self._in_state("gone")

    def _in_state(self, *states: str) -> list[int]:
        known = self._known.items()
        return [rank for rank, status in known if process_state(status.process) in states]

    def report(self, error: BaseException) -> None:
        """Write this rank's report, where one is wanted."""
        self.reports.write(error)

    def break_off(self, group: str, verdict: Verdict, *, at_once: bool) -> None:
        """Tell the other ranks that a group is broken: at once, or unless this rank ends first."""

        def tell() -> None:
            is_rank = os.getpid() == self._me.process.pid  # and not a forked child
            if is_rank and not self._store.error and not self._closed.is_set():
                within(_LAST, functools.partial(self._store.decide, group, verdict))

        if at_once:
            tell()
        else:
            later = threading.Timer(_ENDS_WITHIN, tell)
            later.daemon = True
            later.start()

    def close(self) -> None:
        """End the thread: the process ends, or its group is gone."""
        if self._closed.is_set() or os.getpid() != self._me.process.pid:
            return  # the end of a forked child is not that of the rank
        self._closed.set()
        self._bell.set()
        atexit.unregister(self.close)
        raised = what_ended()
        if raised is not None:
            self.reports.write(raised)
        self._thread.join(_LAST)
        if self._board is None and not self._store.error:
            within(_FAREWELL + _LAST, lambda: self._say_goodbye(raised))
        if not self._thread.is_alive():
            self._store.close()

    def _say_goodbye(self, raised: BaseException | None) -> None:
        """Say why this rank leaves, and that it is done with the store."""
        self._leave(self._store, reason(raised), failed=raised is not None)
        with contextlib.suppress(RuntimeError):
            self._store.count("bye", 1)
            # Rank 0 may host the store, in which others read a verdict, and abort if it is gone.
            begun = time.monotonic()
            while self._me.rank == 0 and self._store.count("bye") < self._me.world_size:
                others = [s for rank, s in self._store.statuses().items() if rank != self._me.rank]
                stays = _FAREWELL if any(status.wait for status in others) else _UNSEEN
                if time.monotonic() - begun >= stays:
                    break
                time.sleep(_MOMENT)

    def _silence(self, pending: PendingCall) -> Verdict | None:
        """Return a verdict where the store is dead, or has been silent for too long."""
        seconds, waited = self._store.silent_for(), time.time() - pending.started
        if seconds < SILENT:
            return None
        is_late = seconds >= SILENT_AT_MOST or waited >= self.settings.timeout
        # Rank 0 may host the store.
        is_down = is_late or 0 in self._in_state("gone", "stopped")
        if not is_down and not self._store.is_dead():
            return None
        doing, error = f"waits in {pending.call}", self._store.error
        return silent_store(self._me.rank, doing, seconds, error)

    def _diagnosis(self, pending: PendingCall) -> Diagnosis:
        group, text = pending.group, str(pending.call)
        if group != self._me.world:
            text += f"  (group of ranks {pending.members})"
        wait = Wait(
            pending.serial,
            group,
            pending.members,
            pending.number,
            pending.kind,
            text,
            self.log.issued().get(group, 0) - 1,  # this call is the last of them
            self.log.counts_exactly.get(group, False),
            watching.is_active,
        )
        begun, timeout = time.monotonic() - self.patience, self.settings.timeout
        return Diagnosis(self._me, wait, timeout, self._store, begun)

    # What the guard's own thread does.

    def _watch(self) -> None:
        self._closed.wait(self._store.delay)
        while not self._closed.is_set():
            self._store.begin()
            try:
                pause = self._look()
                self._store.end()
            except RuntimeError as error:  # of the store, which is tried again
                self._store.error = first_line(error)
                self.connected.clear()
                pause = _RETRY
            self._bell.wait(pause)
            self._bell.clear()

    def _look(self) -> float:
        """Do all that is to be done; return after how many seconds to look again."""
        if not self.connected.is_set():
            self._store.connect()
            self.connected.set()
        if self._reads_who_is_here:
            self._read_who_is_here()
        delays = [self._step(pending, diagnosis) for pending, diagnosis in [*self._open]]
        self._answer()
        return min([self._store.pause, *delays])

    def _read_who_is_here(self) -> None:
        """Read who the others are, and warn of those who stay without a guard."""
        self._known, now = self._store.statuses(), time.monotonic()
        # In the second call of all ranks, each has made a communicator for the first.
        if self._all_by == math.inf and self.log.counts.get(self._me.world, 0) > 1:
            self._all_by = now + GUARDED
        missing = {*range(self._me.world_size)} - self._known.keys()
        self._reads_who_is_here = bool(missing) and now <= self._all_by
        if missing and now > self._all_by:
            why = f"it has not imported distmetrics, or {MODE}=off is set there"
            _log.warning("no guard watches %s: %s", who(missing), why)

    def _step(self, pending: PendingCall, diagnosis: Diagnosis) -> float:
        """Look once at a call that lasts; return after how many seconds to look again."""
        now = time.monotonic()
        if pending.ended is not None:
            diagnosis.close()
            self._open.remove((pending, diagnosis))
        elif pending.verdict is None and now >= diagnosis.due:
            pending.verdict = diagnosis.step(now)
        return max(0.0, diagnosis.due - now) if pending.verdict is None else _RETRY

    def _answer(self) -> None:
        """Answer another rank's question, if there is one."""
        question = self._store.next_question()
        if question is None:
            return
        place, issued = self.log.place(), self.log.issued()
        still = 0.0
        if place.doing and self.log.alone:
            still = self._stillness.seconds(f"{place} {issued}")
        # The calls are read after what is issued, of which one may be theirs.
        where = str(place), still, place.waits_for_all
        self._store.answer(Answer(question, self.log.waits(), *where, issued, {**self.log.counts}))


# By the group of all ranks.
_watchdogs: weakref.WeakKeyDictionary[Any, Watchdog] = weakref.WeakKeyDictionary()


_board: ContextVar[Tombstones | None] = ContextVar("distmetrics_board", default=None)


@contextlib.contextmanager
def leaving_by(tombstones: Tombstones) -> Iterator[None]:
    """Let the job that is joined in the block know these tombstones."""
    token = _board.set(tombstones)
    try:
        yield
    finally:
        _board.reset(token)


def watcher_of_job() -> Watcher:
    """Return who watches all groups of this rank: its guard, unless that is switched off."""
    settings = current_settings()
    guard = _watchdogs.get(dist.group.WORLD) or _guard_job(settings)
    if guard is None or (settings.mode == "off" and not guard.is_used):
        return Watcher()
    if not guard.is_used:
        guard.follow(settings)
        guard.is_used = True
    return guard


watch_by(watcher_of_job)


def _guard_job(settings: Settings) -> Watchdog | None:
    """Begin to guard this rank, unless that is switched off, or it is alone."""
    if settings.mode == "off" or dist.get_world_size() == 1:
        return None
    world: Any = dist.group.WORLD
    me = Identity(dist.get_rank(), dist.get_world_size(), this_process(), world.group_name)
    board = _board.get()
    try:
        of_job = PrefixStore("board", world.get_group_store()) if board is None else board.store
        store = GuardStore(of_job, me)
        # At once: a rank that is gone before its guard is connected is named as well.
        store.publish(None)
    except RuntimeError as error:  # a store that can't be cloned: of a backend for tests, say
        _warn_unwatched(first_line(error))
        return None
    made = _watchdogs[world] = Watchdog(store, settings, board)
    made.log.count_by(me.world, *counter_of(world))
    weakref.finalize(world, made.close)
    return made


@functools.cache  # a job has many groups
def _warn_unwatched(why: str) -> None:
    _log.warning("distmetrics watches no rank of this job: its store says %s", why)


_init_process_group = dist.init_process_group


@functools.wraps(_init_process_group)
def _init_and_guard(*args: Any, **kwargs: Any) -> None:
    """Guard a rank that has called nothing of ours yet: others may wait for it already."""
    _init_process_group(*args, **kwargs)
    _guard_job(current_settings())


if os.environ.get(MODE, "").strip().lower() != "off":
    replace_everywhere(_init_process_group, _init_and_guard)
