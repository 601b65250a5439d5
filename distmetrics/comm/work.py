"""Calls of a transport that are under way, who watches them, and how a backend ends them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from distmetrics.comm.communicator import Call, Tasks
from distmetrics.comm.verdict import Verdict

NAMING_GRACE = 2.0  # seconds that a broken connection waits for somebody to say who has left
OWN_WORDS = 0.5  # seconds of it, where its process is gone, or nobody can be asked
SLICE = 0.1  # seconds that a wait lasts before it looks for a verdict
_SHORTEST, _LONGEST = 20e-6, 1e-3  # seconds between two looks at a device
_BROKEN_WORDS = ("Connection closed", "Connection reset", "Broken pipe")
_CONNECTION_WORDS = (*_BROKEN_WORDS, "gloo", "NCCL")


@dataclass(slots=True, eq=False)
class PendingCall:
    """One call of a transport on this rank, from when it was begun until it is over."""

    call: Call
    group: str  # its name
    members: str  # its ranks of the job, in short
    number: int  # of the group's calls
    kind: str  # the transport's operation
    started: float = field(default_factory=time.time)
    ended: float | None = None
    serial: int = 0  # among this rank's calls over all groups
    watched: bool = False  # the watcher has been asked why it lasts
    warned: bool = False  # the log has its verdict
    verdict: Verdict | None = None


class Calls(Tasks):
    """The calls of this rank over all its groups. This one keeps nothing of them."""

    def count_by(self, group: str, issued: Callable[[], int], exactly: bool) -> None:
        """Let ``issued`` count the collectives of a group; ``exactly``: without sends."""

    def begin_call(self, pending: PendingCall) -> None:
        """Note that this thread begins a call."""

    def end_call(self, pending: PendingCall, *, begun: bool) -> None:
        """Note that a call is over, or was never begun."""


class Watcher:
    """Who watches the calls of this rank. This one watches nothing."""

    patience = SLICE  # seconds that a wait lasts before it looks for a verdict
    grace = 0.0  # seconds that a broken connection waits for somebody to say who has left
    calls = Calls()  # of this rank

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

    def report(self, error: BaseException) -> None:
        """Write this rank's report, where one is wanted: it raises an error."""

    def break_off(self, group: str, verdict: Verdict, *, at_once: bool) -> None:
        """Tell the other ranks that a group is broken: at once, or unless this rank ends first."""

    def leave_job(self, why: str, *, failed: bool) -> None:
        """Publish that this rank leaves the job, where its launcher reads it."""


def ended(work: Any, device: torch.device, seconds: float) -> bool:
    """Wait for a call, some seconds at most; return whether it has ended, or raise its error."""
    if device.type != "cpu":
        return _ended_on_device(work, seconds)
    try:
        work.wait(timedelta(seconds=seconds))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # raises if it has failed, and not just ended after the slice
    return True


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
    text = str(error)
    return isinstance(error, RuntimeError) and any(word in text for word in _CONNECTION_WORDS)


def is_broken_connection(error: BaseException) -> bool:
    """True for an error in which gloo says that its connection to a peer broke."""
    text = str(error)
    broke = "gloo" in text and any(word in text for word in _BROKEN_WORDS)
    return broke and isinstance(error, RuntimeError)
