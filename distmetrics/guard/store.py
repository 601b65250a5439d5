"""What ranks tell each other through the job's key-value store, and the connection to it.

Every method is one, two or three calls of the store, and each may block for as long as the store's
host is silent: they are for the guard's own threads, never for the user's.
"""

from __future__ import annotations

import functools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import torch.distributed as dist
from msgspec import Meta
from torch.distributed.distributed_c10d import PrefixStore

from distmetrics.comm.verdict import Departure, Verdict
from distmetrics.errors import by_line, first_line, rank_ranges, ranks_in
from distmetrics.guard.process_info import ProcessId
from distmetrics.message import MALFORMED, Message, encode, parse

# Seconds between two looks for a question: at most 4 000 looks a second in all.
_POLL, _POLL_A_RANK = 0.1, 2.5e-4
_ACCEPTED = 3.0  # seconds that a machine has to take a connection
_APART = 0.05  # seconds between the connections of two ranks
_ALL_APART = 2.0  # seconds over which those of all ranks are spread in a large world
RAISING_GRACE = 5.0  # seconds that ranks get to raise by themselves once another has failed
LAST_WORDS = 2.0  # seconds that a rank gets to write its report once it is asked to end
_log = logging.getLogger("distmetrics.guard")
M = TypeVar("M")
# Ranks in short, "0-1, 3-1023": each has at most seven digits.
Ranges = Annotated[str, Meta(pattern=r"^(\d{1,7}(-\d{1,7})?(, \d{1,7}(-\d{1,7})?)*)?$")]


class Wait(Message, frozen=True):
    """What a rank waits in: one call of a process group, the ``number``-th of that."""

    serial: int  # among this rank's calls over all groups
    group: str
    members: Ranges
    number: int
    kind: str  # the transport's operation, which must be the same on all ranks
    text: str
    # How many collectives this rank had issued on the group before, ours and torch's own; -1
    # where its backend does not count them. Gloo counts sends and receives as well.
    issued: int = -1
    counts_exactly: bool = False
    is_watched: bool = False  # it is inside guard.watch()

    def has_come_to(self, other: Wait) -> bool:
        """True if this is a wait in the same call of the group, or in a later one."""
        return self.group == other.group and self.number >= other.number

    @property
    def place(self) -> str:
        """The call that this rank is in: ranks in the same place wait for each other rightly."""
        return f"{self.group}/{self.number}"


class RankStatus(Message, frozen=True):
    """What a rank has published: its process, and what it waits in."""

    process: ProcessId
    wait: Wait | None = None


class Answer(Message, frozen=True):
    """What a rank answers when it is asked where it is."""

    question: int
    waits: int = 0  # the serial of its wait, or 0; negative where another thread of it may go on
    where: str = ""
    # Seconds in code of torch's that waits for others, without using the processor.
    still: float = 0.0
    waits_for_all: bool = False  # there, and not just for one rank
    issued: Mapping[str, int] = {}  # collectives on each group, ours and torch's own
    calls: Mapping[str, int] = {}  # of ours


class _Published(Message, frozen=True):
    """A verdict in which ranks with the same line share it."""

    verdict: Verdict
    lines: Mapping[Ranges, str]

    def whole(self) -> Verdict:
        """Return it with a line for each rank."""
        lines = self.lines.items()
        return self.verdict.but(
            per_rank={rank: line for of, line in lines for rank in ranks_in(of)}
        )


class Identity(NamedTuple):
    """Who this rank is: in the job, and as a process; ``world`` names the group of all ranks."""

    rank: int
    world_size: int
    process: ProcessId
    world: str


def read(kind: type[M], data: bytes) -> M | None:
    """Return a message of the store; None if its bytes are malformed, which the log says once."""
    try:
        return parse(kind, data)
    except MALFORMED as error:
        _warn_once(kind.__name__, first_line(error))
        return None


@functools.cache
def _warn_once(kind: str, why: str) -> None:
    _log.warning("the job's store holds a malformed %s: %s", kind, why)


class Tombstones:
    """The departures in a ``torch.distributed`` store, as far as this rank has read them.

    A rank that leaves says so there, for those who still wait for it: so "rank 1 raised ValueError"
    reaches them within a fraction of a second instead of a time-out. A rank that is killed cannot
    write; whoever watches its process writes for it.
    """

    def __init__(self, store: Any) -> None:
        self.store = store
        self._read: list[Departure | None] = []

    def leave(self, departure: Departure) -> None:
        """Publish that a rank has left."""
        number = self.store.add("left", 1)
        self.store.set(f"left/{number}", encode(departure))

    def leave_for(self, rank: int, why: str) -> None:
        """Publish for ``rank``, which failed, unless it said so itself."""
        if all(departure.rank != rank for departure in self.published()):
            self.leave(Departure(rank, why, failed=True))

    def published(self) -> list[Departure]:
        """Return every departure published so far, oldest first."""
        while self.store.check([key := f"left/{len(self._read) + 1}"]):
            self._read.append(read(Departure, self.store.get(key)))
        return [departure for departure in self._read if departure is not None]


class GuardStore(Tombstones):
    """One rank's end of the job's store: a connection of its own, made after ``delay`` seconds.

    Until then it is the job's own ``store``, where a call that blocks holds up all callers.

    Raises:
        RuntimeError: the store can't be connected to a second time.
    """

    def __init__(self, store: Any, me: Identity) -> None:
        super().__init__(store)
        self.me, self.error = me, ""  # of the store, when it failed
        self._status_keys = [f"at/{r}" for r in range(me.world_size)]
        self.pause = max(_POLL, me.world_size * _POLL_A_RANK)  # between two looks for a question
        # Held to the end: a store that rank 0 hosts ends with its last holder.
        self._of_job = store
        self._since: float | None = None
        self._refused: bool | None = None
        self._server, self.delay = None, 0.0
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        if isinstance(store, dist.TCPStore):  # type: ignore[attr-defined]
            self._server = store.host, store.port
            self.delay = me.rank * min(_APART, _ALL_APART / me.world_size)
        else:
            self.connect()

    def connect(self) -> None:
        """Make a connection; torch tries for minutes, where somebody listens."""
        # Seen first after an error: torch would write a page for each vain try of a job that ends.
        if self.error and self._refuses():
            raise RuntimeError(self.error)
        self.store = self._of_job.clone()

    def close(self) -> None:
        """Let go of the connection, and of the job's store."""
        self.store = self._of_job = None

    def begin(self) -> None:
        """Note that the store is asked something."""
        if self._since is None:
            self._since = time.monotonic()

    def end(self) -> None:
        """Note that it has answered."""
        self._since, self._refused, self.error = None, None, ""

    def silent_for(self) -> float:
        """Return for how many seconds it has owed an answer."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def is_dead(self) -> bool:
        """True if nobody listens where it was; a thread tries that from the first call on."""
        if self._server is None:
            return bool(self.error)
        if self._refused is None:
            self._refused = False
            threading.Thread(target=self._refuses, daemon=True).start()
        return self._refused

    def _refuses(self) -> bool:
        try:
            if self._server is not None:
                socket.create_connection(self._server, _ACCEPTED).close()
            self._refused = False
        except OSError:
            self._refused = True
        return self._refused

    def publish(self, wait: Wait | None) -> None:
        """Say who this rank is, and what it waits in."""
        status = RankStatus(self.me.process, wait)
        self.store.set(self._status_keys[self.me.rank], encode(status))

    def statuses(self) -> dict[int, RankStatus]:
        """Return what each rank has published."""
        if self.store.check(self._status_keys):
            found = [read(RankStatus, data) for data in self.store.multi_get(self._status_keys)]
        else:
            found = [self._get(RankStatus, key) for key in self._status_keys]
        return {rank: status for rank, status in enumerate(found) if status is not None}

    def ask(self, rank: int) -> int:
        """Ask a rank where it is; return the question's number."""
        number: int = self.store.add(f"asked/{rank}", 1)
        self.store.set(f"ask/{rank}", "")
        return number

    def next_question(self) -> int | None:
        """Return the number of the newest question to this rank, if there is one."""
        rank = self.me.rank
        # Not waited for: torch writes a page of C++ where a store ends in which somebody waits.
        if not self.store.check([f"ask/{rank}"]):
            return None
        self.store.delete_key(f"ask/{rank}")  # first: one that comes after it is asked anew
        return int(self.store.add(f"asked/{rank}", 0))

    def answer(self, answer: Answer) -> None:
        """Answer a question that was put to this rank."""
        self.store.set(f"said/{self.me.rank}", encode(answer))

    def answers(self, ranks: Iterable[int]) -> dict[int, Answer | None]:
        """Return the latest answer of each rank, None where it has given none."""
        return {rank: self._get(Answer, f"said/{rank}") for rank in ranks}

    def verdict(self, group: str) -> Verdict | None:
        """Return why the group is broken, if it is."""
        published = self._get(_Published, f"verdict/{group}")
        return None if published is None else published.whole()

    def decide(self, group: str, verdict: Verdict) -> Verdict:
        """Publish why the group is broken; return what was published first, by whomever."""
        lines = {rank_ranges(of): line for line, of in by_line(verdict.per_rank).items()}
        data = encode(_Published(verdict.but(per_rank={}, groups=()), lines))
        # In one order, so that ranks of several groups find the same one first.
        for name in verdict.groups or (group,):
            data = self.store.compare_set(f"verdict/{name}", "", data)
        published = read(_Published, data)
        return verdict if published is None else published.whole()

    def count(self, what: str, more: int = 0) -> int:
        """Count ``more`` ranks among those that came so far; return the count."""
        return int(self.store.add(f"count/{what}", more))

    def forget(self, what: str) -> None:
        """Remove a count."""
        self.store.delete_key(f"count/{what}")

    def _get(self, kind: type[M], key: str) -> M | None:
        return read(kind, self.store.multi_get([key])[0]) if self.store.check([key]) else None


def within(seconds: float, fn: Callable[[], object]) -> None:
    """Call a function, and leave it alone if a silent store holds it for too long."""
    thread = threading.Thread(target=fn, daemon=True)
    thread.start()
    thread.join(seconds)
