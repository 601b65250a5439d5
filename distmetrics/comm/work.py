"""Make the collectives of a process group, each of which ends in its result, or in an error.

A wait is done in short slices. Between them this rank asks whoever watches it for a verdict. Where
nobody watches, a connection that breaks is told with who has left.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from distmetrics.call_site import call_site, raise_sites
from distmetrics.comm.call_lock import break_after
from distmetrics.comm.communicator import Call, Communicator, Tasks, call_under_way
from distmetrics.comm.verdict import BROKEN, Verdict, reason
from distmetrics.errors import (
    DistmetricsError,
    Site,
    rank_ranges,
    who,
)

NAMING_GRACE = 2.0  # seconds that a broken connection waits for somebody to say who has left
SLICE = 0.1  # seconds that a wait lasts before it looks for a verdict
_OWN_WORDS = 0.5  # seconds of NAMING_GRACE, where its process is gone, or nobody can be asked
_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two looks at a device
_MOMENT = 0.02  # seconds between two looks for who has left
_BROKEN_WORDS = ("Connection closed", "Connection reset", "Broken pipe")
_CONNECTION_WORDS = (*_BROKEN_WORDS, "gloo", "NCCL")
# Collectives that were sent and whose end nobody has seen: a thread of gloo that drops the last
# hold on a tensor of Python's while the interpreter ends aborts the process. So these are never
# freed.
_never_freed: list[Any] = []
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_never_freed))


@dataclass(slots=True, eq=False)
class PendingCall:
    """One call of a transport on this rank, from when it was begun until it is over.

    Attributes:
        call: in the user's terms.
        group: name of the process group.
        members: its ranks of the job, in short.
        number: how many calls this group has made, this one included.
        kind: the transport's operation.
        started: when it was begun, in seconds since 1970.
        ended: when it was over, or None.
        serial: number among this rank's calls over all groups.
        watched: whether the watcher has been asked why it lasts.
        warned: whether the log has its verdict.
        verdict: why it can't end, once that is known.
    """

    call: Call
    group: str
    members: str
    number: int
    kind: str
    started: float = field(default_factory=time.time)
    ended: float | None = None
    serial: int = 0
    watched: bool = False
    warned: bool = False
    verdict: Verdict | None = None


class Calls(Tasks):
    """The calls of this rank over all its groups. This one keeps nothing of them."""

    def count_by(self, group: str, issued: Callable[[], int], *, exactly: bool) -> None:
        """Let ``issued`` count the collectives of a group; ``exactly``: without sends."""

    def begin_call(self, pending: PendingCall) -> None:
        """Note that this thread begins a call."""

    def end_call(self, pending: PendingCall, *, begun: bool) -> None:
        """Note that a call is over, or was never begun."""


class Watcher:
    """Who watches the calls of this rank. This one watches nothing.

    Attributes:
        patience: seconds that a wait lasts before it looks for a verdict.
        grace: seconds that a broken connection waits for somebody to say who has left.
        calls: of this rank.
    """

    patience = SLICE
    grace = 0.0
    calls = Calls()

    def look(self, pending: PendingCall) -> Verdict | None:
        """Return why a call that lasts can't end, as far as is known."""
        return None

    def look_after_loss(self, pending: PendingCall) -> Verdict | None:
        """Return why a call can't end whose connection broke, as far as is known."""
        return self.departed(f"waits in {pending.call}")

    def departed(self, doing: str) -> Verdict | None:
        """Return that ranks have said that they leave, or that somebody has said so for them."""
        return None

    def gone(self) -> list[int]:
        """Return the ranks of this machine whose processes are gone."""
        return []

    def is_deaf(self) -> bool:
        """Return whether nobody can be asked."""
        return False

    def fail(self, error: DistmetricsError) -> None:
        """Note that a group is broken by an error, which this rank raises."""

    def report(self, error: BaseException) -> None:
        """Write this rank's report, where one is wanted: it raises an error."""

    def break_off(self, group: str, verdict: Verdict, *, at_once: bool) -> None:
        """Tell the other ranks that a group is broken: at once, or unless this rank ends first."""

    def depart(self, why: str) -> None:
        """Tell the other ranks that this rank makes no further call."""

    def leave_job(self, why: str, *, failed: bool) -> None:
        """Publish that this rank leaves the job, where its launcher reads it."""


class WaitingCommunicator(Communicator):
    """Base of a transport whose collectives are begun, and then waited for.

    Args:
        rank: of this process in the group.
        name: of the group.
        members: its ranks, as ranks of the job.
        device: of the transport.
        watcher: of this rank.

    Attributes:
        calls: how many calls of the transport the group has made.
    """

    def __init__(
        self,
        rank: int,
        name: str,
        members: Sequence[int],
        device: torch.device,
        watcher: Watcher,
    ) -> None:
        self.rank, self.world_size, self.device = rank, len(members), device
        self.calls = 0
        self.watcher = watcher
        self._ranks = [*members]
        self._me, self._name, self._members = members[rank], name, rank_ranges(members)
        watcher.calls.count_by(name, self.issued, exactly=device.type != "cpu")

    @property
    def members(self) -> Sequence[int]:
        """The ranks of the group, as the job numbers them."""
        return self._ranks

    def issued(self) -> int:
        """Return how many collectives this rank has issued on the group, ours and torch's own."""
        return 0

    def run(self, call: Call, kind: str, start: Callable[[], Any], output: Any = None) -> Any:
        """Start a call of the transport, wait for its end, and return what it has filled.

        Args:
            call: in the user's terms.
            kind: the transport's operation.
            start: begins it.
            output: the tensors that it fills.

        Raises:
            DivergedError, MismatchError, PeerLostError: it can't end; every later call raises the
                same.
            RuntimeError: the backend refuses to make such a call.
        """
        if self.state.verdict is not None:
            raise self.state.verdict.error(self._me, call.site)
        if call_under_way() is None:
            self.state.note(self.state.direct_calls, f"{kind} {call.detail}", call.site)
        self.calls += 1
        pending = PendingCall(call, self._name, self._members, self.calls, kind)
        self.watcher.calls.begin_call(pending)
        work, ended = None, False
        try:
            work = start()
            self._wait(work, pending)
            ended = True
        except RuntimeError as error:
            # What the backend refuses is the caller's own error: nothing was sent.
            if isinstance(error, DistmetricsError) or not (work or is_connection_error(error)):
                raise
            raise self._lost(pending, error) from error
        except BaseException as error:
            if work is not None or not isinstance(error, (ValueError, TypeError)):
                break_after(error, self, call)
            raise
        finally:
            if work is None:
                self.calls -= 1
            elif not ended:
                _never_freed.append((work, start, output))
            self.watcher.calls.end_call(pending, begun=work is not None)
        return output

    def blame(self, error: BaseException) -> DistmetricsError | None:
        """Return an error that names the rank behind a connection error of a call made elsewhere.

        None for other errors, and where nothing says that a rank is lost. The group is broken then,
        as it is where one of our own calls finds that out.
        """
        if not is_connection_error(error):
            return None
        doing = "was in a collective of torch.distributed's own (DDP, say)"
        verdict, gone = self._found_out(lambda: self.watcher.departed(doing))
        if verdict is None and not (gone or is_broken_connection(error)):
            return None
        verdict = verdict or self._unnamed(doing, error, gone)
        site = next(iter(raise_sites(error)), None) or call_site()
        return self._break(verdict, site).with_traceback(error.__traceback__)

    def leave(self, error: BaseException | None) -> None:
        """Publish that this rank leaves the job: after an error, or at its end."""
        if error is not None:
            self.watcher.report(error)
        self.watcher.leave_job(reason(error), failed=error is not None)

    def report(self, error: DistmetricsError) -> None:
        """Write this rank's report, where one is wanted: a call raises an error."""
        self.watcher.report(error)

    def break_off(self, verdict: Verdict, *, at_once: bool) -> None:
        """Tell the other ranks that this rank makes no further call on this communicator."""
        self.watcher.break_off(self._name, verdict, at_once=at_once)

    def give_up(self, error: BaseException, scope: str) -> None:
        """Tell the others that this rank has left a block by an exception; refuse later calls."""
        if self.state.verdict is not None:
            return
        left = f"left {scope}: {reason(error)}"
        notes = ("The other ranks have been told.",)
        verdict = Verdict("diverged", f"this rank has {left}", (self._me,), notes=notes)
        self.state.verdict = verdict
        self.watcher.depart(left)

    @property
    def tasks(self) -> Tasks:
        """The calls that this rank makes in its background."""
        return self.watcher.calls

    def _wait(self, work: Any, pending: PendingCall) -> None:
        patience = self.watcher.patience
        while not self._ended(work, patience):
            patience = SLICE
            verdict = self.watcher.look(pending)
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
        doing = f"waits in {pending.call}"
        verdict, gone = self._found_out(lambda: self.watcher.look_after_loss(pending))
        verdict = verdict or self.watcher.departed(doing) or self._unnamed(doing, error, gone)
        return self._break(verdict, pending.call.site)

    def _found_out(self, look: Callable[[], Verdict | None]) -> tuple[Verdict | None, list[int]]:
        """Return why a call can't end, or the ranks whose processes are gone.

        Whoever watches the process of a lost rank may be late to say so.
        """
        began = time.monotonic()
        while True:
            verdict, gone = look(), self.watcher.gone()
            grace = self.watcher.grace
            if gone or self.watcher.is_deaf():
                grace = min(grace, _OWN_WORDS)
            if verdict is not None or time.monotonic() - began >= grace:
                return verdict, gone
            time.sleep(_MOMENT)

    def _unnamed(self, doing: str, error: BaseException, gone: list[int]) -> Verdict:
        """Return a verdict of what the backend says, and of processes that are gone."""
        lines = {self._me: doing} | dict.fromkeys(gone, "its process is gone")
        return Verdict(
            "peer-lost",
            f"the connection to {who(gone) if gone else 'another rank'} broke",
            tuple(gone),
            lines,
            notes=(f"The backend says: {str(error).strip().splitlines()[-1]}", BROKEN),
            do="look for the first error or kill in the other ranks' logs.",
        )

    def _break(self, verdict: Verdict, site: Site | None) -> DistmetricsError:
        """Refuse every later call on this group, and return what this one raises."""
        self.state.verdict = verdict
        error = verdict.error(self._me, site)
        self.watcher.fail(error)
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


def is_connection_error(error: BaseException) -> bool:
    """True for an error of torch.distributed that says that a peer is gone, or out of step."""
    own = isinstance(error, DistmetricsError) or not isinstance(error, RuntimeError)
    return not own and any(word in str(error) for word in _CONNECTION_WORDS)


def is_broken_connection(error: BaseException) -> bool:
    """True for an error in which gloo says that its connection to a peer broke."""
    text = str(error)
    broke = "gloo" in text and any(word in text for word in _BROKEN_WORDS)
    return broke and is_connection_error(error)
