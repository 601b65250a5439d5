"""Sockets from rank to rank, for small data of a group whose ranks are all on one machine.

What gloo moves passes through a thread of its own on either side: each is to be woken, and competes with the job's own
threads for the cores. A message that the kernel takes from one rank straight to the other wakes that one alone: between
two ranks that have just computed 32 KiB take a sixth of the time.
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

from torch import Tensor

__all__ = ["Exchange", "Links", "UnevenError"]

_BUFFER = 1 << 20  # bytes that a socket should hold; the kernel may allow less
_SIZE = struct.Struct("q")  # before each message: how many bytes it has


class UnevenError(RuntimeError):
    """A rank sends another number of bytes than this one in the same place: it makes another call, or its data differs.

    Attributes:
        peer: that rank; ``theirs``: its bytes, ``mine``: this rank's.
    """

    def __init__(self, peer: int, theirs: int, mine: int) -> None:
        super().__init__(f"rank {peer} sends {theirs} bytes where this rank sends {mine}")
        self.peer, self.theirs, self.mine = peer, theirs, mine


class Links:
    """One rank's sockets to all others of its group.

    Args:
        sockets: by rank, connected; they are closed with this object.
    """

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self.sockets = dict(sockets)
        self.lock = threading.Lock()
        self.last: Exchange | None = None  # that is not done: one that was interrupted is still to be received
        for sock in self.sockets.values():
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self._ended = weakref.finalize(self, _close, list(self.sockets.values()))
        _live.add(self)

    def exchange(self, sent: Tensor, rows: Sequence[Tensor]) -> Exchange:
        """Begin to send ``sent`` to every other rank, and to receive theirs into their places of ``rows``.

        Args:
            sent: uint8, 1-dim, contiguous, on the CPU; of the same length on every rank.
            rows: one for each rank, like ``sent``; this rank's own is left as it is.
        """
        exchange = Exchange(self, sent, rows)
        exchange.begin()
        return exchange

    def close(self) -> None:
        """Close the sockets; what was sent is still received."""
        self._ended()


class Exchange:
    """A message to every other rank and one from each: it goes on while somebody waits for it."""

    def __init__(self, links: Links, sent: Tensor, rows: Sequence[Tensor]) -> None:
        self._links, self._before = links, links.last
        self._held = sent, rows  # whose memory the views below are of
        self._size = sent.numel()
        message = _view(sent)
        self._unsent: dict[int, list[memoryview]] = {}
        self._unread: dict[int, list[memoryview]] = {}
        self._sizes: dict[int, bytearray] = {}
        for rank in links.sockets:
            self._unsent[rank] = [memoryview(_SIZE.pack(self._size)), message]
            self._sizes[rank] = size = bytearray(_SIZE.size)
            self._unread[rank] = [memoryview(size), _view(rows[rank])]
        links.last = self

    def begin(self) -> None:
        """Send what the kernel takes at once, which is all of small data."""
        with self._links.lock:
            if self._before is None:
                self._send()

    def done(self, seconds: float) -> bool:
        """Whether it has ended within some seconds.

        Raises:
            RuntimeError: the connection to a rank is closed or broken.
            UnevenError: a rank sends another number of bytes.
        """
        deadline = time.monotonic() + seconds
        while not self._go_on():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._poll(left)
        return True

    def _go_on(self) -> bool:
        with self._links.lock:
            if not self._move():
                return False
            if self._links.last is self:
                self._links.last = None
            return True

    def _move(self) -> bool:
        """Send and receive what can be now; return whether that was all."""
        if self._before is not None and not self._before._move():
            return False
        self._before = None
        if self._unsent:
            self._send()
        if self._unread:
            self._receive()
        return not self._unsent and not self._unread

    def _send(self) -> None:
        for rank, parts in [*self._unsent.items()]:
            while parts:
                try:
                    _advance(parts, self._links.sockets[rank].sendmsg(parts))
                except BlockingIOError:
                    break
                except OSError as error:
                    raise RuntimeError(f"Connection reset: sending to rank {rank} failed: {error}") from error
            else:
                del self._unsent[rank]

    def _receive(self) -> None:
        for rank, parts in [*self._unread.items()]:
            while parts:
                try:
                    count = self._links.sockets[rank].recvmsg_into(parts)[0]
                except BlockingIOError:
                    break
                except OSError as error:
                    raise RuntimeError(f"Connection reset: receiving from rank {rank} failed: {error}") from error
                if not count:
                    raise RuntimeError(f"Connection closed by rank {rank}")
                head = len(parts) == 2  # the size, and the message
                _advance(parts, count)
                if head and len(parts) < 2:
                    self._check(rank)
            else:
                del self._unread[rank]

    def _check(self, rank: int) -> None:
        (size,) = _SIZE.unpack(self._sizes[rank])
        if size != self._size:
            raise UnevenError(rank, size, self._size)

    def _poll(self, seconds: float) -> None:
        first = self._before or self
        poller = select.poll()
        for rank, sock in self._links.sockets.items():
            wanted = (select.POLLIN if rank in first._unread else 0) | (select.POLLOUT if rank in first._unsent else 0)
            if wanted:
                poller.register(sock, wanted)
        poller.poll(math.ceil(1e3 * seconds))


def _view(tensor: Tensor) -> memoryview:
    """The memory of a tensor of bytes, which must be held as long; without NumPy, which torch may be without."""
    if not tensor.numel():
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * tensor.numel()).from_address(tensor.data_ptr())).cast("B")


def _advance(parts: list[memoryview], count: int) -> None:
    """Take what has been moved off the front of some views, and views that are empty."""
    while parts and count >= len(parts[0]):
        count -= len(parts.pop(0))
    if count:
        parts[0] = parts[0][count:]


def _close(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


_live: weakref.WeakSet[Links] = weakref.WeakSet()


def _close_in_child() -> None:
    """A child of a rank, a data loader's worker say, must not keep the sockets of a rank that has died open."""
    for links in [*_live]:
        links.close()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_in_child)
