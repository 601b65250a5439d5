"""The guard's part of the job's key-value store: slips, questions, answers and verdicts.

Every method is one, two or three calls of the store, and each may block for as long as the store's
host is silent: they are for the guard's own threads, never for the user's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Protocol

from distmetrics.comm.guard.judge import Verdict
from distmetrics.comm.guard.slips import Answer, Slip

ALL_ASK = 64  # ranks up to which every rank that waits finds out for itself; in larger worlds the first three do
_FIRST = 3
_POLL, _POLL_A_RANK = (
    0.1,
    2.5e-4,
)  # seconds between two looks for a question: at most 4 000 a second in all
_WHERE, _REPORT = "where", "report"


class Store(Protocol):
    """What the guard needs of a ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> None:
        """Write."""
        ...

    def add(self, key: str, amount: int) -> int:
        """Count; return the sum."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""
        ...

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Read what is there."""
        ...

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Write where ``expected``, or nothing, is; return what is there then."""
        ...

    def delete_key(self, key: str) -> bool:
        """Forget."""
        ...


class Notices:
    """One rank's end of the guard's keys in a store."""

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self._slips = [f"at/{r}" for r in range(world_size)]
        self._complete = False

    def publish(self, slip: Slip) -> None:
        """Say where this rank is."""
        self._store.set(self._slips[self._rank], slip.encode())

    def slips(self) -> dict[int, Slip]:
        """Return what each rank has published."""
        if not self._complete and not self._store.check(self._slips):
            found = {r: self._get(key) for r, key in enumerate(self._slips)}
            return {r: Slip.decode(text) for r, text in found.items() if text is not None}
        self._complete = True
        return {
            r: Slip.decode(text.decode())
            for r, text in enumerate(self._store.multi_get(self._slips))
        }

    def ask(self, rank: int, *, report: bool = False) -> int:
        """Ask a rank where it is, or to write its report; return the question's number."""
        number = self._store.add(f"asked/{rank}", 1)
        self._store.set(f"ask/{rank}/{number}", _REPORT if report else _WHERE)
        return number

    def answers(self, ranks: Iterable[int]) -> dict[int, Answer]:
        """Return the latest answer of each rank that has given one."""
        found = {rank: self._get(f"said/{rank}") for rank in ranks}
        return {rank: Answer.decode(text) for rank, text in found.items() if text is not None}

    def answer(self, answer: Answer) -> None:
        """Answer a question that was put to this rank."""
        self._store.set(f"said/{self._rank}", answer.encode())

    def verdict(self, group: str) -> Verdict | None:
        """Return why the group is broken, if it is."""
        text = self._get(f"verdict/{group}")
        return None if text is None else _decode(text)

    def decide(self, group: str, verdict: Verdict) -> Verdict:
        """Publish why the group is broken; return what was published first, by whomever."""
        text = json.dumps([verdict.code, verdict.text, verdict.peers])
        for name in verdict.groups or (
            group,
        ):  # in one order, so that all ranks find the same one first
            text = self._store.compare_set(f"verdict/{name}", "", text).decode()
        return _decode(text)

    def come_to(self, place: tuple[str, int]) -> int:
        """Count this rank among those who wait in a call; return how many came before it, or with
        it.
        """
        return self._store.add(_place(place), 1)

    def goodbye(self) -> int:
        """Count this rank among those that are done with the store; return how many are."""
        return self._store.add("bye", 1)

    def gone(self) -> int:
        """Return how many ranks are done with the store."""
        return self._store.add("bye", 0)

    def forget(self, place: tuple[str, int]) -> None:
        """Take the count of a call away."""
        self._store.delete_key(_place(place))

    def _get(self, key: str) -> str | None:
        return self._store.multi_get([key])[0].decode() if self._store.check([key]) else None


def _place(place: tuple[str, int]) -> str:
    return f"in/{place[0]}/{place[1]}"


def _decode(text: str) -> Verdict:
    code, told, peers = json.loads(text)
    return Verdict(code, told, tuple(peers))


def asks(nth: int, world_size: int) -> bool:
    """Whether the rank that came as the ``nth`` to a call finds out who is missing, or leaves it to
    others.
    """
    return world_size <= ALL_ASK or nth <= _FIRST


class Listener:
    """Looks for the questions that are put to this rank, seldom enough for a store that all ranks
    look at.

    It does not block in the store until there is one: a store that ends with rank 0, as it does in
    every job that ends well, would be an error then, of which torch writes a page of C++ to the
    user's screen.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self._next = 1
        self._pause = max(_POLL, world_size * _POLL_A_RANK)

    def listen(self, closed: threading.Event) -> tuple[int, bool] | None:
        """Return the number of the next question and whether it asks for a report; None once
        ``closed`` is set.
        """
        while not self._store.check([f"ask/{self._rank}/{self._next}"]):
            if closed.wait(self._pause):
                return None
        newest = self._store.add(f"asked/{self._rank}", 0)
        keys = [f"ask/{self._rank}/{number}" for number in range(self._next, newest + 1)]
        wanted = [self._take(key) for key in keys]
        self._next = newest + 1
        return newest, _REPORT in wanted

    def _take(self, key: str) -> str:
        """Read a question and remove it; one whose number is given is there in a moment."""
        self._store.wait([key], timedelta(seconds=10))
        text: bytes = self._store.get(key)
        self._store.delete_key(key)
        return text.decode()
