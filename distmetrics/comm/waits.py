"""Make a transport's calls, and never wait for ever: each wait ends, or ends in an error that says
why it can't.

A wait is done in short slices. Between them this rank looks whether there is a verdict: the
guard's, where one watches, else what the notice board says of those who left.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from distmetrics.comm.base import Call, Meanwhile, under_way
from distmetrics.comm.board import Board, Departure, reason
from distmetrics.comm.guard.judge import Verdict, departed
from distmetrics.comm.guard.sentry import Sentry
from distmetrics.comm.guard.wait import Wait
from distmetrics.comm.links import Exchange, UnevenError
from distmetrics.errors import (
    DistmetricsError,
    DivergedError,
    MismatchError,
    PeerLostError,
    compose,
    who,
)

_SLICE = 0.1  # seconds that a wait lasts before it looks what is known
_NAME_GRACE = 2.0  # seconds that a broken connection waits for somebody to name who left
_OWN_WORDS = 0.5  # of these, where its process is gone, or nobody can be asked
_KEPT = 50  # direct calls that an error tells of
_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two looks at a device
_CONNECTION_WORDS = ("Connection closed", "Connection reset", "Broken pipe", "gloo", "NCCL")
_BROKEN = "Every later call on this group raises at once."


class Waits:
    """The calls of one process group on this rank.

    Args:
        rank: of this process in the group.
        name: of the group.
        members: its ranks of the job, in short.
        device: of the transport.
        board: where departures are published, if somewhere.
        sentry: the guard of this rank, if one watches it.
    """

    def __init__(
        self,
        rank: int,
        name: str,
        members: str,
        device: torch.device,
        board: Board | None,
        sentry: Sentry | None,
    ) -> None:
        self.calls = 0
        self.past = 0
        self.direct_calls: deque[str] = deque(maxlen=_KEPT)
        self.sentry = sentry
        self._rank = rank
        self._name = name
        self._members = members
        self._device = device
        self._board = board
        self._broken: Verdict | None = None

    def run(
        self,
        call: Call,
        kind: str,
        start: Callable[[], Any],
        meanwhile: Meanwhile | None = None,
        held: Any = None,
    ) -> None:
        """Start a call of the transport and wait for its end; ``held``: the tensors that it works
        on.

        Raises:
            DivergedError, MismatchError, PeerLostError: it can't end; every later call raises the
                same.
            RuntimeError: the backend refuses to make such a call.
        """
        if self._broken is not None:
            raise self._error(self._broken, call)
        self.calls += 1
        if under_way() is None:
            self._note(call, kind)
        wait = Wait(call, self._name, self._members, self.calls, kind)
        if self.sentry is not None:
            self.sentry.enter(wait)
        begun = ended = False
        try:
            work = start()
            begun = True
            if meanwhile is not None:
                meanwhile()
            self._wait(work, wait)
            ended = True
        except UnevenError as error:
            raise self._end(uneven(wait, error), wait) from error
        except RuntimeError as error:
            if isinstance(error, DistmetricsError) or not (begun or is_connection_error(error)):
                raise  # of what the backend refuses nothing was sent: the caller's own error, and the group is whole
            raise self._lost(wait, error) from error
        finally:
            if not begun:
                self.calls -= 1
            elif not ended:
                _never_free(held)
            if self.sentry is not None:
                self.sentry.leave(wait, begun=begun)

    def _note(self, call: Call, kind: str) -> None:
        """Count a direct use of the transport, which nobody agrees upon, into the hash that tells
        of a slip.
        """
        text = f"{kind} {call.detail}"
        self.past = zlib.crc32(text.encode(), self.past)
        self.direct_calls.append(f"{text}  {call.site or ''}".rstrip())

    def blame(self, error: BaseException) -> DistmetricsError | None:
        """Name the rank behind a connection error of the backend that did not pass through here."""
        if not is_connection_error(error) or self._board is None:
            return None
        departures = sorted(
            (d for d in self._board.departures() if d.rank != self._rank),
            key=lambda d: not d.failed,
        )
        if not departures:
            return None
        first = departures[0]
        peers = [first.rank]
        lines = {
            first.rank: first.why,
            self._rank: "was in a collective of torch.distributed's own (DDP, say)",
        }
        if first.failed:
            headline, do = (
                f"{who(peers)} failed while this rank talked to it",
                f"mend the failure of {who(peers)} first.",
            )
            return PeerLostError(compose(headline, lines, do=do), rank=self._rank, peers=peers)
        text = compose(
            f"{who(peers)} has left, and this rank still waits for it",
            lines,
            likely="ranks take different numbers of steps, or a condition on the rank ends one "
            "early.",
            do="let every rank take the same steps.",
        )
        return DivergedError(text, rank=self._rank, peers=peers)

    def give_up(self, error: BaseException, scope: str) -> None:
        """Tell the others that this rank has left ``scope`` by an exception; refuse every later
        call.
        """
        if self._broken is None:
            text = (
                f"this rank has left {scope}: it {reason(error)}\nThe other ranks have been told."
            )
            self._broken = Verdict(DivergedError.code, text, (self._rank,))
            if self.sentry is not None:
                self.sentry.depart(f"left {scope}: it {reason(error)}")

    def _wait(self, work: Any, wait: Wait) -> None:
        patience = _SLICE if self.sentry is None else self.sentry.patience
        while not self._done(work, patience):
            patience = _SLICE
            verdict = self._verdict(wait)
            if verdict is not None:
                raise self._end(verdict, wait)

    def _done(self, work: Any, seconds: float) -> bool:
        """Whether a call has ended within some seconds."""
        if isinstance(work, Exchange):
            return work.done(seconds)
        if self._device.type != "cpu":
            return _done_on_device(work, seconds)
        try:
            work.wait(timedelta(seconds=seconds))
        except RuntimeError:
            if not work.is_completed():
                return False
            work.wait()  # finished between the slice and the look, or failed: this tells
        return True

    def _verdict(self, wait: Wait) -> Verdict | None:
        if self.sentry is not None:
            return self.sentry.look(wait)
        missing = [] if self._board is None else self._board.missing(self.calls)
        return self._departed(missing, wait) if missing else None

    def _departed(self, missing: list[Departure], wait: Wait) -> Verdict:
        return departed(
            {departure.rank: departure for departure in missing},
            {self._rank: f"waits in {wait.call}"},
        )

    def _lost(self, wait: Wait, error: RuntimeError) -> DistmetricsError:
        """Build the error for a connection that broke; whoever watches the lost rank may be a
        moment late.
        """
        began = time.monotonic()
        deadline = began + _NAME_GRACE
        gone: list[int] = []
        while (verdict := self._verdict(wait)) is None and time.monotonic() < deadline:
            if self.sentry is None and self._board is None:
                break
            if self.sentry is not None:
                gone = self.sentry.gone()
                if (gone or self.sentry.store_failed) and time.monotonic() > began + _OWN_WORDS:
                    break
            time.sleep(0.02)
        return self._end(verdict or self._unnamed(wait, error, gone), wait)

    def _unnamed(self, wait: Wait, error: RuntimeError, gone: list[int]) -> Verdict:
        """Say what the backend says, and whose process is gone, if one is: nobody else has a word
        for it.
        """
        text = compose(
            f"the connection to {who(gone) if gone else 'another rank'} broke",
            {self._rank: f"waits in {wait.call}"} | dict.fromkeys(gone, "its process is gone"),
            notes=[f"The backend says: {str(error).strip().splitlines()[-1]}", _BROKEN],
            do="look for the first error or kill in the other ranks' logs.",
        )
        return Verdict(PeerLostError.code, text, tuple(gone))

    def _end(self, verdict: Verdict, wait: Wait) -> DistmetricsError:
        """Refuse every later call on this group, and return what this one raises."""
        self._broken = verdict
        error = self._error(verdict, wait.call)
        if self.sentry is not None:
            self.sentry.fail(error)
        return error

    def _error(self, verdict: Verdict, call: Call) -> DistmetricsError:
        return verdict.kind()(verdict.text, rank=self._rank, peers=verdict.peers, site=call.site)


def uneven(wait: Wait, error: UnevenError) -> Verdict:
    """Tell of two ranks that sent each other something else than they were to get; both see it."""
    text = compose(
        f"{who([error.peer])} sends {error.theirs} bytes where rank {error.me} sends {error.mine}"
        if error.theirs != error.mine
        else f"{who([error.peer])} and rank {error.me} are in different calls of this group",
        {error.me: f"is in {wait.call}", error.peer: f"sent {error.theirs} bytes"},
        notes=["No tensor was returned.", _BROKEN],
        likely="a rank makes another call here, or its tensor has another shape or dtype.",
        do="let every rank make the same calls; distmetrics.all_gather_cat takes tensors of "
        "different lengths.",
    )
    return Verdict(MismatchError.code, text, (error.peer,))


def is_connection_error(error: BaseException) -> bool:
    """Whether an error of torch.distributed's says that a peer is gone, or has sent what was not
    expected.
    """
    own = isinstance(error, DistmetricsError) or not isinstance(error, RuntimeError)
    return not own and any(word in str(error) for word in _CONNECTION_WORDS)


def _never_free(held: Any) -> None:
    """Keep what a call that did not end works on for as long as the process lives.

    A thread of gloo that drops the last hold on a tensor of Python's while the interpreter ends
    aborts the process.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def _done_on_device(work: Any, seconds: float) -> bool:
    """Wait for the device without holding the host: a call that never ends must not stop it."""
    deadline, pause = time.monotonic() + seconds, _SHORTEST
    while not work.is_completed():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(_LONGEST, 2 * pause)
    work.wait()  # orders the streams
    return True
