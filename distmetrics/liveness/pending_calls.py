"""Make a transport's calls, each of which ends in its result, or in an error that says why.

A wait is done in short slices. Between them this rank looks whether the guard has a verdict. Where
none watches, a connection that breaks is told with who has left.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from distmetrics.comm.base import Call, under_way
from distmetrics.comm.sites import call_site, raise_sites
from distmetrics.errors import (
    DistmetricsError,
    DivergedError,
    PeerLostError,
    Site,
    rank_ranges,
    who,
)
from distmetrics.liveness.call_record import CallRecord, Round
from distmetrics.liveness.departures import NAMING_GRACE, Departure, Departures, reason
from distmetrics.liveness.rank_report import (
    PendingCall,
    is_broken_connection,
    is_connection_error,
)
from distmetrics.liveness.verdict import BROKEN, Verdict, departed
from distmetrics.liveness.watchdog import watchdog_of_job

_SLICE = 0.1  # seconds that a wait lasts before it looks for a verdict
_OWN_WORDS = 0.5  # seconds of NAMING_GRACE, where its process is gone, or nobody can be asked
_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two looks at a device
_MOMENT = 0.02  # seconds between two looks for who has left
_OF_BACKEND = (RuntimeError, ValueError, TypeError)  # what it raises where it refuses a call
# Rounds that were sent and whose end nobody has seen: a thread of gloo that drops the last hold on
# a tensor of Python's while the interpreter ends aborts the process. So these are never freed.
_never_freed: dict[int, Round] = {}
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_never_freed))


class PendingCalls:
    """The calls of one process group on this rank.

    Args:
        rank: of this process in the group.
        name: of the group.
        members: its ranks, as ranks of the job.
        device: of the transport.
        departures: where they are published, if somewhere.

    Attributes:
        members: the ranks of the group, as the job numbers them.
        calls: how many calls of the transport the group has made.
        record: the calls of ours that they were made for.
        watchdog: the guard of this rank, if one watches it.
    """

    def __init__(
        self,
        rank: int,
        name: str,
        members: Sequence[int],
        device: torch.device,
        departures: Departures | None,
    ) -> None:
        self.rank, self.device = rank, device
        self.calls = 0
        self.record = CallRecord()
        self.watchdog = watchdog_of_job(departures)
        if self.watchdog is not None:
            self.watchdog.log.counters[name] = self.issued
            if device.type != "cpu":
                self.watchdog.log.counts_exactly.add(name)
        self.members = [*members]
        self._me, self._name, self._members = members[rank], name, rank_ranges(members)
        self._departures = departures

    def issued(self) -> int:
        """Return how many collectives this rank has issued on the group, ours and torch's own."""
        return 0

    def run(
        self,
        call: Call,
        kind: str,
        start: Callable[[], Any],
        held: Any = None,
        output: Any = None,
    ) -> Any:
        """Start a call of the transport, wait for its end, and return what it has filled.

        Args:
            call: in the user's terms.
            kind: the transport's operation.
            start: begins it; a Python function cannot be interrupted safely.
            held: the tensors that it works on.
            output: those of them that it fills. Where the round was sent before an interrupt, what
                was filled then is returned instead.

        Raises:
            DivergedError, MismatchError, PeerLostError: it can't end; every later call raises the
                same.
            RuntimeError: the backend refuses to make such a call.
        """
        record = self.record
        if not record.making:
            record.finish()
        if record.verdict is not None:
            raise record.verdict.error(self._me, call.site)
        one = record.next_round()
        if one is None:
            if under_way() is None:
                record.note_direct_call(f"{kind} {call.detail}", call.site)
            self.calls += 1
            one = record.begin_round(output, (self.calls, held))
        pending = PendingCall(call, self._name, self._members, one.details[0], kind)
        try:
            self._carry_out(one, start, pending)
        except (DistmetricsError, *_OF_BACKEND):
            raise
        except BaseException as error:
            if one.works and not record.making:
                record.note_interrupt(type(error).__name__, call.site)
            elif not record.making:  # the others wait in a call that nobody here can make up for
                self.give_up(error, call.op)
            raise
        return one.output

    def _carry_out(self, one: Round, start: Callable[[], Any], pending: PendingCall) -> None:
        """Send a round, unless it was sent before an interrupt, and wait for its end."""
        if self.watchdog is not None:
            self.watchdog.log.enter(pending)
        ended = False
        try:
            if not one.works:
                one.send(start)
            self._wait(one.works[0], pending)
            ended = True
        except RuntimeError as error:
            # What the backend refuses is the caller's own error: nothing was sent.
            if isinstance(error, DistmetricsError) or not (one.works or is_connection_error(error)):
                raise
            raise self._lost(pending, error) from error
        finally:
            begun = bool(one.works)
            if not begun:
                self.calls -= 1
            elif not ended:
                _never_freed[id(one)] = one
            else:
                _never_freed.pop(id(one), None)
            if self.watchdog is not None:
                self.watchdog.leave(pending, begun=begun)

    def blame(self, error: BaseException) -> DistmetricsError | None:
        """Return an error that names the rank behind a connection error of a call made elsewhere.

        None for other errors, and where nothing says that a rank is lost. The group is broken then,
        as it is where one of our own calls finds that out.
        """
        if not is_connection_error(error):
            return None
        doing = "was in a collective of torch.distributed's own (DDP, say)"
        verdict, gone = self._found_out(lambda: self._left(doing))
        if verdict is None and not (gone or is_broken_connection(error)):
            return None
        verdict = verdict or self._unnamed(doing, error, gone)
        site = next(iter(raise_sites(error)), None) or call_site()
        return self._break(verdict, site).with_traceback(error.__traceback__)

    def _left(self, doing: str) -> Verdict | None:
        """Return that ranks have said that they leave, or that somebody has said so for them."""
        published: list[Departure] = []
        if self._departures is not None:
            # The store may be gone, with the process that hosts it.
            with contextlib.suppress(RuntimeError):
                published = self._departures.published()
        left = {gone.rank: gone for gone in published if gone.rank != self._me}
        return departed(left, {self._me: doing}) if left else None

    def leave(self, error: BaseException | None) -> None:
        """Publish that this rank leaves the job: after an error, or at its end."""
        if error is not None:
            self.report(error)
        if self._departures is None:
            return
        counts = {self._name: self.calls}
        if self.watchdog is not None:
            counts = {**self.watchdog.log.counts}
        departure = Departure(self._me, reason(error), error is not None, counts)
        # The store may be gone, with the process that hosts it.
        with contextlib.suppress(RuntimeError):
            self._departures.leave(departure)

    def report(self, error: BaseException) -> None:
        """Write this rank's report, where one is wanted: it raises an error."""
        if self.watchdog is not None:
            self.watchdog.reports.write(error)

    def give_up(self, error: BaseException, scope: str) -> None:
        """Tell the others that this rank has left a block by an exception; refuse later calls."""
        if self.record.verdict is not None:
            return
        left = f"left {scope}: {reason(error)}"
        notes = ("The other ranks have been told.",)
        verdict = Verdict(DivergedError, f"this rank has {left}", (self._me,), notes=notes)
        self.record.verdict = verdict
        if self.watchdog is not None:
            self.watchdog.depart(left)

    def _wait(self, work: Any, pending: PendingCall) -> None:
        patience = _SLICE if self.watchdog is None else self.watchdog.patience
        while not self._ended(work, patience):
            patience = _SLICE
            verdict = None if self.watchdog is None else self.watchdog.look(pending)
            if verdict is not None:
                raise self._break(verdict, pending.call.site)

    def _ended(self, work: Any, seconds: float) -> bool:
        """True if a call has ended within some seconds."""
        if self.device.type != "cpu":
            return _ended_on_device(work, seconds)
        try:
            work.wait(timedelta(seconds=seconds))
        except RuntimeError:
            if not work.is_completed():
                return False
            work.wait()  # raises if it has failed, and not just ended after the slice
        return True

    def _lost(self, pending: PendingCall, error: RuntimeError) -> DistmetricsError:
        """Return the error for a broken connection."""
        doing, watchdog = f"waits in {pending.call}", self.watchdog
        verdict, gone = self._found_out(
            lambda: self._left(doing) if watchdog is None else watchdog.look(pending)
        )
        return self._break(verdict or self._unnamed(doing, error, gone), pending.call.site)

    def _found_out(self, look: Callable[[], Verdict | None]) -> tuple[Verdict | None, list[int]]:
        """Return why a call can't end, or the ranks whose processes are gone.

        Whoever watches the process of a lost rank may be late to say so.
        """
        watchdog, began = self.watchdog, time.monotonic()
        while True:
            verdict, gone = look(), [] if watchdog is None else watchdog.roster.gone()
            grace = NAMING_GRACE
            if gone or (watchdog is not None and watchdog.store_failed):
                grace = _OWN_WORDS
            elif watchdog is None and self._departures is None:
                grace = 0.0
            if verdict is not None or time.monotonic() - began >= grace:
                return verdict, gone
            time.sleep(_MOMENT)

    def _unnamed(self, doing: str, error: BaseException, gone: list[int]) -> Verdict:
        """Return a verdict of what the backend says, and of processes that are gone."""
        lines = {self._me: doing} | dict.fromkeys(gone, "its process is gone")
        return Verdict(
            PeerLostError,
            f"the connection to {who(gone) if gone else 'another rank'} broke",
            tuple(gone),
            lines,
            notes=(f"The backend says: {str(error).strip().splitlines()[-1]}", BROKEN),
            do="look for the first error or kill in the other ranks' logs.",
        )

    def _break(self, verdict: Verdict, site: Site | None) -> DistmetricsError:
        """Refuse every later call on this group, and return what this one raises."""
        self.record.verdict = verdict
        error = verdict.error(self._me, site)
        if self.watchdog is not None:
            self.watchdog.fail(error)
        return error


def _ended_on_device(work: Any, seconds: float) -> bool:
    """Wait for the device without holding the host: a call that never ends must not stop it."""
    deadline, pause = time.monotonic() + seconds, _SHORTEST
    while not work.is_completed():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(_LONGEST, 2 * pause)
    work.wait()  # orders the streams
    return True
