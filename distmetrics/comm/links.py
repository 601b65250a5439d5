"""Sockets from rank to rank, for small data of a group whose ranks are all on one machine.

What gloo moves passes through a thread of its own on either side: each is to be woken, and competes
with the job's own threads for the cores. A message that the kernel takes from one rank straight to
the other wakes that one alone: between two ranks that have just computed 32 KiB take a sixth of the
time.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

_BUFFER = 1 << 20  # bytes that a socket should hold; the kernel may allow less
_HEAD = struct.Struct(
    "qq"
)  # before each message: which of the group's it is, and how many bytes it has
_QUIET = getattr(socket, "MSG_NOSIGNAL", 0)  # whose reader is gone is an error, no SIGPIPE


class UnevenError(RuntimeError):
    """A rank sends something else than this one in the same place: another number of bytes, or
    another call's.

    Attributes:
        peer: that rank; ``me``: this one.
        theirs: how many bytes it sends; ``mine``: how many this rank sends.
    """

    def __init__(self, peer: int, me: int, theirs: int, mine: int) -> None:
        super().__init__(f"rank {peer} sends {theirs} bytes where rank {me} sends {mine}")
        self.peer, self.me, self.theirs, self.mine = peer, me, theirs, mine


class Links:
    """One rank's sockets to all others of its group.

    Args:
        sockets: by rank of the group, connected; they are closed with this object.
        timeout: seconds that an exchange may last; None for ever.
        names: the ranks of the job that those of the group are, if they are others.
        rank: of this process in the group.
    """

    def __init__(
        self,
        sockets: Mapping[int, socket.socket],
        timeout: float | None = None,
        names: Sequence[int] = (),
        rank: int = 0,
    ) -> None:
        self.sockets = dict(sockets)
        self.timeout = timeout
        self.rank = rank
        self.names = names
        self.lock = threading.RLock()  # a signal's handler may gather as well
        self.begun = 0
        self.pending: list[
            Exchange
        ] = []  # not done, the oldest first: those that were interrupted keep their place
        for sock in self.sockets.values():
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self._ended = weakref.finalize(self, _close, list(self.sockets.values()))
        self._ended.atexit = False  # other handlers of that time may still gather
        _live.add(self)

    def name(self, rank: int) -> int:
        """The job's number of a rank of the group."""
        return self.names[rank] if self.names else rank

    def exchange(self, sent: Tensor, rows: Sequence[Tensor]) -> Exchange:
        """Begin to send ``sent`` to every other rank, and to receive theirs into their places of
        ``rows``.

        Args:
            sent: uint8, 1-dim, contiguous, on the CPU; of the same length on every rank.
            rows: one for each rank, like ``sent``; this rank's own is left as it is.
        """
        with self.lock:
            self.begun += 1
            exchange = Exchange(self, self.begun, sent, rows)
            self.pending.append(exchange)
        self.go_on(receiving=False)  # what the kernel takes at once, which is all of small data
        return exchange

    def go_on(self, *, receiving: bool = True) -> None:
        """Send and receive what can be now, of all that is not done, each rank's in order."""
        with self.lock:
            full: set[int] = set()  # ranks for which an earlier message is still to be sent
            behind: set[int] = set()  # from which an earlier one is still to be received
            for exchange in [*self.pending]:
                exchange.send(full)
                if receiving:
                    exchange.receive(behind)
            while self.pending and self.pending[0].ended:
                del self.pending[0]

    def poll(self, seconds: float) -> None:
        """Wait until something can be sent or received."""
        poller = select.poll()
        for rank, sock in self.sockets.items():
            wanted = 0
            for exchange in self.pending:
                wanted |= exchange.wanted(rank)
            if wanted:
                poller.register(sock, wanted)
        poller.poll(math.ceil(1e3 * seconds))

    def close(self) -> None:
        """Close the sockets; what was sent is still received."""
        self._ended()


class Exchange:
    """A message to every other rank and one from each: it goes on while somebody waits for it, or
    for a later one.

    A signal's handler may raise between any two steps here. So what was moved is known by lists
    that only grow, and that grow in the same step of the interpreter in which the kernel moves it;
    everything else is derived from them.
    """

    def __init__(self, links: Links, number: int, sent: Tensor, rows: Sequence[Tensor]) -> None:
        self._links, self._held = links, (sent, rows)  # whose memory the views below are of
        self._head = _HEAD.pack(number, sent.numel())
        self._length = _HEAD.size + sent.numel()
        self._message = memoryview(self._head), _view(sent)
        self._rooms = {
            rank: (memoryview(bytearray(_HEAD.size)), _view(rows[rank])) for rank in links.sockets
        }
        self._sent: dict[int, list[int]] = {rank: [] for rank in links.sockets}
        self._received: dict[int, list[tuple[int, Any, int, Any]]] = {
            rank: [] for rank in links.sockets
        }
        self._unsent, self._unread = (
            set(links.sockets),
            set(links.sockets),
        )  # derived, and never short of a rank
        self._deadline = None if links.timeout is None else time.monotonic() + links.timeout

    @property
    def ended(self) -> bool:
        """Whether all is sent and received."""
        return not self._unsent and not self._unread

    def done(self, seconds: float) -> bool:
        """Whether it has ended within some seconds.

        Raises:
            RuntimeError: the connection to a rank is closed or broken, or the group's time-out is
                over.
            UnevenError: a rank sends another number of bytes, or another call's.
        """
        until = time.monotonic() + seconds
        while True:
            self._links.go_on()
            if self.ended:
                return True
            now = time.monotonic()
            if self._deadline is not None and now > self._deadline:
                raise RuntimeError(f"the group's time-out of {self._links.timeout:g} s is over")
            if now >= until:
                return False
            self._links.poll(min(until, self._deadline or until) - now)

    def wanted(self, rank: int) -> int:
        """What of a rank's socket is to be waited for."""
        return (select.POLLOUT if rank in self._unsent else 0) | (
            select.POLLIN if rank in self._unread else 0
        )

    def send(self, full: set[int]) -> None:
        """Send what the kernel takes, but to ranks in ``full``; add those for which it does not
        take all.
        """
        for rank in [*self._unsent]:
            counts = self._sent[rank]
            while rank not in full and (at := sum(counts)) < self._length:
                try:  # one step for the interpreter: no signal comes between what is sent and that it is known
                    counts.extend(
                        map(
                            self._links.sockets[rank].sendmsg,
                            [_rest(self._message, at)],
                            [()],
                            [_QUIET],
                        )
                    )
                except BlockingIOError:
                    full.add(rank)
                except OSError as error:
                    name = self._links.name(rank)
                    raise RuntimeError(
                        f"Connection reset: sending to rank {name} failed: {error}"
                    ) from error
            if sum(counts) == self._length:
                self._unsent.discard(rank)

    def receive(self, behind: set[int]) -> None:
        """Receive what is there, but from ranks in ``behind``; add those from which not all has
        come.
        """
        for rank in [*self._unread]:
            counts = self._received[rank]
            while rank not in behind and (at := _bytes(counts)) < self._length:
                try:  # likewise
                    counts.extend(
                        map(self._links.sockets[rank].recvmsg_into, [_rest(self._rooms[rank], at)])
                    )
                except BlockingIOError:
                    behind.add(rank)
                except OSError as error:
                    name = self._links.name(rank)
                    raise RuntimeError(
                        f"Connection reset: receiving from rank {name} failed: {error}"
                    ) from error
                else:
                    if not counts[-1][0]:
                        raise RuntimeError(f"Connection closed by rank {self._links.name(rank)}")
            if _bytes(counts) >= _HEAD.size:
                self._check(rank)
            if _bytes(counts) == self._length:
                self._unread.discard(rank)

    def _check(self, rank: int) -> None:
        head = bytes(self._rooms[rank][0])
        if head != self._head:
            links = self._links
            raise UnevenError(
                links.name(rank),
                links.name(links.rank),
                _HEAD.unpack(head)[1],
                _HEAD.unpack(self._head)[1],
            )


def _view(tensor: Tensor) -> memoryview:
    """The memory of a tensor of bytes, which must be held as long; without NumPy, which torch may
    be without.
    """
    if not tensor.numel():
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * tensor.numel()).from_address(tensor.data_ptr())).cast("B")


def _bytes(received: Sequence[tuple[int, Any, int, Any]]) -> int:
    return sum([count for count, *_ in received])


def _rest(parts: Sequence[memoryview], at: int) -> list[memoryview]:
    """What is left of a message of two parts after ``at`` bytes."""
    head, body = parts
    return [head[at:], body] if at < len(head) else [body[at - len(head) :]]


def _close(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


_live: weakref.WeakSet[Links] = weakref.WeakSet()


def _close_in_child() -> None:
    """A child of a rank, a data loader's worker say, must not keep the sockets of a rank that has
    died open.
    """
    for links in [*_live]:
        links.close()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_in_child)
