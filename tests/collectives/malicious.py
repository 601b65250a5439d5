"""A peer that means harm: what it may put into frames, and a world in which it is rank 1.

Light to import, since real processes import it too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor

from distmetrics.collectives import exchange
from distmetrics.collectives.buckets import from_bytes, to_bytes
from distmetrics.collectives.header import COMPRESSED, Header
from distmetrics.comm.communicator import SingleCommunicator
from distmetrics.errors import PeerLostError

_MOST = 1 << 27
BODY = Header.__struct_fields__.index("body")
ROOM = exchange.HEADER_AREA - exchange._HEAD.size
Craft = Callable[[bytes], tuple[bytes, bytes]]  # from a frame to another, and what follows it


class BesideMalice(SingleCommunicator):
    """Rank 0 of two: rank 1 answers the first gather with a crafted frame, then with what follows it."""

    world_size = 2

    def __init__(self, craft: Craft, follows: bytes = b"") -> None:
        self._craft, self._follows = craft, follows
        self._is_first = True

    def all_gather(self, x: Tensor) -> list[Tensor]:
        if x.nbytes > _MOST:
            raise PeerLostError("the peer announced much, and sends nothing")
        sent = to_bytes(x.detach().contiguous().reshape(-1).view(torch.uint8))
        if self._is_first:
            self._is_first = False
            sent, follows = self._craft(sent)
            self._follows = follows or self._follows
        else:
            sent, self._follows = self._follows[: len(sent)].ljust(len(sent), b"\3"), self._follows[len(sent) :]
        if not sent:
            return [x, x]
        return [x, from_bytes(sent).view(x.dtype).reshape(x.shape)]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        return x if src == 0 else torch.full_like(x, 3)


def head_of(frame: bytes) -> list[int]:
    """The fields of a frame's head: mark, bytes of header and data, and what comes after."""
    return list(exchange._HEAD.unpack_from(frame))


def header_in(frame: bytes) -> list[Any]:
    """The parts of a frame's header; those of its body, the message of the layer above, as a list."""
    parts: list[Any] = msgspec.msgpack.decode(frame[exchange._HEAD.size :][: head_of(frame)[1]])
    parts[BODY] = msgspec.msgpack.decode(parts[BODY]) if parts[BODY] else b""
    return parts


def with_head(frame: bytes, head: list[int]) -> bytes:
    return exchange._HEAD.pack(*head) + frame[exchange._HEAD.size :]


def with_parts(frame: bytes, parts: Any) -> tuple[bytes, bytes]:
    """The frame with a header of other parts."""
    if isinstance(parts, list) and len(parts) > BODY and not isinstance(parts[BODY], bytes):
        parts = [*parts[:BODY], msgspec.msgpack.encode(parts[BODY]), *parts[BODY + 1 :]]
    return with_header(frame, msgspec.msgpack.encode(parts))


def with_header(frame: bytes, blob: bytes) -> tuple[bytes, bytes]:
    """The frame with other bytes in place of its header, and those that do not fit into it."""
    head = head_of(frame)
    head[1] = len(blob)
    area = (exchange._HEAD.pack(*head) + blob[:ROOM]).ljust(exchange.HEADER_AREA, b"\0")
    return area + frame[len(area) :], blob[ROOM:]


def with_data(frame: bytes, data: bytes) -> bytes:
    """The frame with other data, announced as it is."""
    head = head_of(frame)
    head[2] = len(data)
    start = exchange.HEADER_AREA
    return (with_head(frame, head)[:start] + data).ljust(len(frame), b"\0")


def bomb(size: int) -> bytes:
    """A compressed header of ``size`` bytes."""
    squeezed = zlib.compressobj(9)
    body = b"".join(squeezed.compress(bytes(1 << 20)) for _ in range(size >> 20)) + squeezed.flush()
    return COMPRESSED + body


class ExecutedError(Exception):
    """A peer's code was run."""


def execute() -> None:
    raise ExecutedError


class Harm:
    """Its pickle calls a function."""

    def __reduce__(self) -> Any:
        return execute, ()
