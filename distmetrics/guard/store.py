"""The guard's part of the job's key-value store: statuses, questions, answers and verdicts.

Every method is one, two or three calls of the store, and each may block for as long as the store's
host is silent: they are for the guard's own threads, never for the user's.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from distmetrics.comm.verdict import Verdict
from distmetrics.guard.rank_status import Answer, RankStatus, encode

# In worlds of up to ALL_ASK ranks every rank that waits finds out for itself why; in larger ones
# the first three that come to a call do.
ALL_ASK = 64
FIRST_ASK = 3
# Seconds between two looks for a question: at most 4 000 looks a second in all.
_POLL, _POLL_A_RANK = 0.1, 2.5e-4
T = TypeVar("T")


class GuardStore:
    """One rank's end of the guard's keys in a store.

    Args:
        store: a connection of its own, since a call that blocks holds up all callers.
        rank: of this process in the job.
        world_size: number of ranks of the job.

    Attributes:
        store: may be replaced by another connection.
        pause: seconds between two looks for a question.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self.store = store
        self._rank = rank
        self._status_keys = [f"at/{r}" for r in range(world_size)]
        self._next_question = 1
        self.pause = max(_POLL, world_size * _POLL_A_RANK)

    def publish(self, status: RankStatus) -> None:
        """Say where this rank is."""
        self.store.set(self._status_keys[self._rank], encode(status))

    def statuses(self) -> dict[int, RankStatus]:
        """Return what each rank has published."""
        if self.store.check(self._status_keys):
            texts = dict(enumerate(self.store.multi_get(self._status_keys)))
        else:
            texts = {rank: self._get(key) for rank, key in enumerate(self._status_keys)}
        return {rank: RankStatus.decode(text) for rank, text in texts.items() if text is not None}

    def ask(self, rank: int, *, report: bool = False) -> int:
        """Ask a rank where it is, and perhaps for its report; return the question's number."""
        if report:
            self.store.set(f"report/{rank}", "")
        number: int = self.store.add(f"asked/{rank}", 1)
        self.store.set(f"ask/{rank}/{number}", "")
        return number

    def next_question(self) -> int | None:
        """Return the number of the newest question to this rank, if there is one.

        It does not block in the store until there is one: a store that ends with rank 0, as it does
        in every job that ends well, would be an error then, of which torch writes a page of C++ to
        the user's screen.
        """
        if not self.store.check([f"ask/{self._rank}/{self._next_question}"]):
            return None
        newest: int = self.store.add(f"asked/{self._rank}", 0)
        for number in range(self._next_question, newest + 1):
            self.store.delete_key(f"ask/{self._rank}/{number}")
        self._next_question = newest + 1
        return newest

    def report_wanted(self) -> bool:
        """True if a rank has asked this one for its report."""
        return bool(self.store.check([f"report/{self._rank}"]))

    def answer(self, answer: Answer) -> None:
        """Answer a question that was put to this rank."""
        self.store.set(f"said/{self._rank}", encode(answer))

    def answers(self, ranks: Iterable[int]) -> dict[int, Answer]:
        """Return the latest answer of each rank that has given one."""
        texts = {rank: self._get(f"said/{rank}") for rank in ranks}
        return {rank: Answer.decode(text) for rank, text in texts.items() if text is not None}

    def verdict(self, group: str) -> Verdict | None:
        """Return why the group is broken, if it is."""
        text = self._get(f"verdict/{group}")
        return None if text is None else Verdict.decode(text)

    def decide(self, group: str, verdict: Verdict) -> Verdict:
        """Publish why the group is broken; return what was published first, by whomever."""
        text = verdict.encode()
        # In one order, so that ranks of several groups find the same one first.
        for name in verdict.groups or (group,):
            text = self.store.compare_set(f"verdict/{name}", "", text).decode()
        return Verdict.decode(text)

    def count(self, what: str, more: int = 0) -> int:
        """Count ``more`` ranks among those that came so far; return the count."""
        return int(self.store.add(f"count/{what}", more))

    def forget(self, what: str) -> None:
        """Remove a count."""
        self.store.delete_key(f"count/{what}")

    def _get(self, key: str) -> bytes | None:
        return self.store.multi_get([key])[0] if self.store.check([key]) else None


def within(seconds: float, fn: Callable[[], T]) -> T | None:
    """Return what a function returns, or None where a silent store holds it for too long."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(fn()), daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


SILENT = 4.0  # seconds after which a silent store is looked into
SILENT_AT_MOST = 60.0  # seconds in which a store that takes connections must answer
_ACCEPTED = 3.0  # seconds that a machine has to take a connection
_APART = 0.05  # seconds between the connections of two ranks
_ALL_APART = 2.0  # seconds over which those of all ranks are spread in a large world


class StoreLink:
    """One rank's connection to the job's store.

    Args:
        store: of the job, which its threads may block.
        rank: of this process in the job.
        world_size: number of ranks of the job.

    Attributes:
        store: the job's.
        delay: seconds after which this rank connects.
        error: what the store said when it failed, or "".

    Raises:
        RuntimeError: the store can't be connected to a second time.
    """

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        self.store = store
        self.error = ""
        self._since: float | None = None
        self._refusals: list[bool] | None = None
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        is_tcp = isinstance(store, dist.TCPStore)  # type: ignore[attr-defined]
        self._server = store if is_tcp else None
        self.delay = 0.0 if self._server is None else rank * min(_APART, _ALL_APART / world_size)
        if self._server is None:
            self.store.clone()

    def connect(self) -> Any:
        """Return a connection of its own; torch tries for minutes, where somebody listens.

        Raises:
            RuntimeError: the store can't be reached.
        """
        # Seen first after an error: torch would write a page for each vain try of a job that ends.
        if self.error and self._refuses():
            raise RuntimeError(self.error)
        return self.store.clone()

    def begin(self) -> None:
        """Note that the store is asked something."""
        if self._since is None:
            self._since = time.monotonic()

    def end(self) -> None:
        """Note that it has answered."""
        self._since, self._refusals, self.error = None, None, ""

    def silent_for(self) -> float:
        """Return for how many seconds it has owed an answer."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def is_dead(self) -> bool:
        """True if nobody listens where it was; a thread tries that from the first call on."""
        if self._server is None:
            return bool(self.error)
        if self._refusals is None:
            refusals = self._refusals = []
            threading.Thread(target=lambda: refusals.append(self._refuses()), daemon=True).start()
        return any(self._refusals)

    def _refuses(self) -> bool:
        if self._server is None:
            return False
        try:
            socket.create_connection((self._server.host, self._server.port), _ACCEPTED).close()
        except OSError:
            return True
        return False
