"""The guard of one rank: two threads that are quiet while all is well.

One answers where this rank's thread is when another rank asks. One finds out why this rank waits,
once it has waited for a while. The user's thread never touches the store: it writes down what it
calls, and while it waits it looks whether there is a verdict. A store that does not answer is a
verdict as well.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore

from distmetrics.comm.board import Board, reason
from distmetrics.comm.guard.inquiry import Inquiry, Self
from distmetrics.comm.guard.judge import Verdict
from distmetrics.comm.guard.notices import ALL_ASK, Listener, Notices
from distmetrics.comm.guard.places import Place, machine, place_of, process_state, this_process
from distmetrics.comm.guard.records import write_report
from distmetrics.comm.guard.settings import REPORT, Settings
from distmetrics.comm.guard.slips import Answer, Slip, Waiting
from distmetrics.comm.guard.wait import Wait
from distmetrics.errors import DistmetricsError, PeerLostError, compose

STORE_SILENT = 4.0  # seconds in which a call of the store must be done while a rank waits
_KEPT = 50  # calls that a report tells of
_LAST = 1.0  # seconds at the end for the threads, which a silent store may hold
_FAREWELL = 3.0  # seconds at the end in which rank 0 stays for the others
_END = 10.0  # seconds that a process has to end, once its group has broken
_MOMENT = 0.01  # seconds between two looks whether the others have left
_SOON = 0.1  # seconds between two looks whether all ranks have come
_RETRY = 0.5  # seconds after which a store that failed is tried again
_log = logging.getLogger("distmetrics.guard")


class Sentry:
    """Watches one rank, and lets it know why it waits.

    Args:
        store: of the job; the guard uses connections of its own.
        rank: of this process in the job.
        world_size: number of ranks of the job.
        settings: what to do, and how long a rank may wait.
        world: name of the group of all ranks.
        board: where departures are published; None where nobody else does, and the guard has one of
            its own.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        settings: Settings,
        world: str,
        board: Board | None = None,
    ) -> None:
        self.settings = settings
        self.calls: deque[Wait] = deque(maxlen=_KEPT)
        self.counts: dict[str, int] = {}
        self._me = Self(rank, world_size, machine(), *this_process(), world)
        self.patience = self._me.first_look
        self._tells = board is None
        self._board = Board(_clone(PrefixStore("board", store) if board is None else board.store))
        self._store: Any = PrefixStore(
            "guard", store
        )  # held: a store that rank 0 hosts ends with its last holder
        self._notices = Notices(_clone(self._store), rank, world_size)
        own = _clone(self._store)
        self._answers, self._listener = (
            Notices(own, rank, world_size),
            Listener(own, rank, world_size),
        )
        self._thread = threading.get_ident()
        self._serial, self._alone = 0, True
        self._open: deque[Wait] = deque()
        self._bell, self._closed = threading.Event(), threading.Event()
        self._busy_since: float | None = None
        self._store_error = ""
        self._reported = self._failed = False
        self._known: dict[int, Slip] = {}
        self._notices.publish(self._me.slip(None))
        self._threads = [
            threading.Thread(target=target, name=f"distmetrics: {what}", daemon=True)
            for target, what in (
                (self._find_out, "why this rank waits"),
                (self._respond, "where this rank is"),
            )
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self._at_exit)

    def enter(self, wait: Wait) -> None:
        """Note that this thread begins a call."""
        thread = threading.get_ident()
        if thread != threading.main_thread().ident:
            self._alone = False
        self._serial += 1
        wait.serial, self._thread = self._serial, thread
        self.counts[wait.group] = wait.number
        self.calls.append(wait)

    def leave(self, wait: Wait, *, begun: bool = True) -> None:
        """Note that the call is over, or was never begun."""
        wait.ended = time.time()
        self.counts[wait.group] = wait.number - (not begun)
        if wait.looked:
            self._bell.set()

    def look(self, wait: Wait) -> Verdict | None:
        """Return why a call can't end, as far as that is known; the first look starts the finding
        out.
        """
        if not wait.looked:
            wait.looked = True
            self._open.append(wait)
            self._bell.set()
            return None
        found = (wait.inquiry.verdict if wait.inquiry is not None else None) or self._silence(wait)
        if found is not None and self.settings.mode == "warn":
            if not wait.told:
                wait.told = True
                _log.warning("%s", found.text)
            return None
        return found

    def fail(self, error: DistmetricsError) -> None:
        """Write this rank's report, where one is wanted, and ask those for theirs who have not come
        here.
        """
        self._failed = True
        if self.settings.report is None:
            return
        self._reported = True
        self._report(self.settings.report, error, place_of(self._thread))
        if not self._store_error:
            _within(_LAST, lambda: [self._notices.ask(peer, report=True) for peer in error.peers])

    def depart(self, why: str) -> None:
        """Tell the others that this rank makes no further call."""
        if os.getpid() == self._me.pid:
            _within(_LAST, lambda: self._leave(why, failed=True))

    def close(self) -> None:
        """End the threads: the process ends, or its group is gone."""
        if (
            self._closed.is_set() or os.getpid() != self._me.pid
        ):  # the end of a forked child is not that of the rank
            return
        self._closed.set()
        self._bell.set()
        atexit.unregister(self._at_exit)
        _within(_FAREWELL + _LAST, self._say_goodbye)
        for thread in self._threads:
            thread.join(_LAST)
        self._store = None

    def _at_exit(self) -> None:
        """End, and see to it that the process does: torch waits at its end for calls that will
        never be answered.
        """
        self.close()
        if self._failed:
            nowhere = Path(os.devnull).open("w")  # noqa: SIM115  (faulthandler holds it)
            faulthandler.dump_traceback_later(_END, exit=True, file=nowhere)

    @property
    def store_failed(self) -> bool:
        """Whether the job's store can't be asked."""
        return bool(self._store_error)

    def gone(self) -> list[int]:
        """Return the ranks of this machine whose processes are gone; asks no store, which may be
        gone with them.
        """
        near = {
            rank: slip
            for rank, slip in self._known.items()
            if slip.machine == self._me.machine != ""
        }
        return [rank for rank, slip in near.items() if process_state(slip.pid, slip.born) == "gone"]

    def _say_goodbye(self) -> None:
        if not self._tells:
            return
        raised = getattr(sys, "last_value", None)  # what ended the script, if something did
        self._leave(reason(raised), failed=raised is not None)
        with contextlib.suppress(RuntimeError):
            self._notices.goodbye()
            until = (
                time.monotonic() + _FAREWELL
            )  # a thread in the store when the interpreter ends aborts the process
            while (
                self._me.rank == 0
                and time.monotonic() < until
                and self._notices.gone() < self._me.world_size
            ):
                time.sleep(
                    _MOMENT
                )  # it may host the store, and the others are about to leave as well

    def _leave(self, why: str, *, failed: bool) -> None:
        with contextlib.suppress(
            RuntimeError
        ):  # the store may be gone, with the process that hosts it
            calls = self.counts.get(self._me.world, 0)
            self._board.leave(self._me.rank, why, failed=failed, calls=calls, groups=self.counts)

    def _silence(self, wait: Wait) -> Verdict | None:
        """Return a verdict where the store has not answered for too long."""
        since = self._busy_since
        if since is None or time.monotonic() - since < STORE_SILENT:
            return None
        seconds = time.monotonic() - since
        text = compose(
            f"the job's key-value store does not answer, since {seconds:.0f} s, and this rank "
            "waits",
            {self._me.rank: f"waits in {wait.call}"},
            notes=[f"The store says: {self._store_error}"] if self._store_error else [],
            likely="its host (rank 0, where no launcher has it) is stopped or gone, or the "
            "network is cut.",
            do="see to that process first; torchrun hosts the store outside the ranks.",
        )
        return Verdict(PeerLostError.code, text, ())

    def _get_to_know(self) -> None:
        """Learn who the others are, for when the store can't be asked any more."""
        with contextlib.suppress(RuntimeError):  # told by the first wait
            while (
                len(self._known) < self._me.world_size
                and not self._open
                and not self._closed.wait(_SOON)
            ):
                self._known = self._notices.slips()

    def _find_out(self) -> None:
        if self._me.world_size <= ALL_ASK:
            self._get_to_know()
        while not self._closed.is_set():
            delay: float | None = None
            for wait in [*self._open]:
                try:
                    wanted = self._step(wait)
                except RuntimeError as error:  # of the store: told as a silence, if it lasts
                    self._store_error = str(error).strip().partition("\n")[0]
                    wanted = _RETRY
                if wait.ended is None:
                    delay = wanted if delay is None else min(delay, wanted)
                else:
                    self._open.remove(wait)
            self._bell.wait(delay)
            self._bell.clear()

    def _step(self, wait: Wait) -> float:
        now = time.monotonic()
        if self._busy_since is None:
            self._busy_since = now
        if wait.inquiry is None:
            where = "" if wait.group == self._me.world else f"  (group of ranks {wait.members})"
            place = wait.group, wait.members, wait.number, wait.kind
            waiting = Waiting(wait.serial, *place, f"{wait.call}{where}", self._alone)
            begun = now - (time.time() - wait.started)
            wait.inquiry = Inquiry(
                self._me, waiting, self.settings.timeout, self._notices, self._board, begun
            )
        if wait.ended is not None:
            wait.inquiry.close()
            delay = 0.0
        else:
            delay = _RETRY if wait.inquiry.verdict is not None else wait.inquiry.step(now)
        self._busy_since, self._store_error = None, ""
        return delay

    def _respond(self) -> None:
        with contextlib.suppress(
            RuntimeError
        ):  # the store is gone: whoever waits finds that out by itself
            while (asked := self._listener.listen(self._closed)) is not None:
                number, wants_report = asked
                place = place_of(self._thread)
                self._answers.answer(self._answer(number, place))
                if wants_report and self.settings.report is not None and not self._reported:
                    self._report(self.settings.report, None, place)

    def _report(self, folder: Path, error: DistmetricsError | None, place: Place) -> None:
        try:
            write_report(folder, self._me, [*self.calls], error, place)
        except (
            OSError
        ) as failure:  # of the folder: the user's error must still be raised, or answered
            _log.warning(
                "rank %d can't write its report into the folder of %s: %s",
                self._me.rank,
                REPORT,
                failure,
            )

    def _answer(self, number: int, place: Any) -> Answer:
        last = self.calls[-1] if self.calls else None
        waits = 0 if last is None or last.ended is not None else last.serial
        return Answer(number, waits, str(place), place.group, tuple(map(str, place.stack)))


def _clone(store: Any) -> Any:
    """Open a connection of its own to the store: who waits on one holds up all its callers."""
    return store.clone()


def _within(seconds: float, fn: Callable[[], Any]) -> None:
    """Call a function that a silent store may hold; give up on it after a while."""
    thread = threading.Thread(target=fn, daemon=True)
    thread.start()
    thread.join(seconds)
