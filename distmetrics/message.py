"""Typed messages between ranks: one schema a message, encoded by it and decoded by type.

A peer may run another version, or be in hands that mean harm. So bytes are read as data of the
announced type alone, sizes are checked before memory is taken, and malformed bytes are our error,
which names the rank: nothing raw of Python, torch or msgspec gets out.
"""

from __future__ import annotations

import functools
import pickle
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Annotated, Any, Self, TypeVar

import msgspec

from distmetrics.call_site import users_line
from distmetrics.errors import DistmetricsError, MismatchError, Ranks
from distmetrics.tree import map_leaves

M = TypeVar("M")
LARGEST_HEADER = 1 << 24  # bytes of what one rank tells of a call
LARGEST_DATA = 1 << 40  # bytes that one rank sends in a call
MALFORMED = (msgspec.MsgspecError, ValueError, RecursionError)  # what parse raises
_SHOWN_OF_CAUSE = 200  # characters

Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_DATA)]
Shape = Annotated[tuple[Size, ...], msgspec.Meta(max_length=64)]  # torch's most dimensions


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of messages: equal ones give equal bytes, and they can be keys of a dict."""

    def but(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields."""
        return msgspec.structs.replace(self, **changes)


def encode(message: Any, write: Callable[[Any], bytes] = msgspec.msgpack.encode) -> bytes:
    """Return the bytes of a message; ``write`` makes them, of a format of msgspec's."""
    try:
        return write(message)
    except UnicodeEncodeError:  # a file's name, say, that is not UTF-8
        plain = msgspec.to_builtins(message, builtin_types=(bytes,))
        return write(map_leaves(_with_escapes, plain))


def _with_escapes(leaf: Any) -> Any:
    return leaf.encode(errors="backslashreplace").decode() if isinstance(leaf, str) else leaf


# msgspec reads the annotations of a class when it is first decoded. Two threads that do so at the
# same time end in a segmentation fault, so one of them waits.
_reading_types = threading.Lock()


@functools.cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with _reading_types:
        return msgspec.msgpack.Decoder(kind)


def parse(kind: type[M], data: bytes) -> M:
    """Return the message of a type that :func:`encode` has written; raise one of ``MALFORMED``."""
    message: M = _decoder(kind).decode(data)  # type: ignore[arg-type]  # a type can be hashed
    return message


def convert(value: Any, kind: Any) -> Any:
    """Return a message made of lists and plain values; raise one of ``MALFORMED``."""
    with _reading_types:
        return msgspec.convert(value, kind)


def decode(kind: type[M], data: bytes, what: str, rank: int | None = None) -> M:
    """Return the message that a peer has sent; raise MismatchError if it is not such a one."""
    with reading(what, rank):
        return parse(kind, data)


def not_ours(why: str, rank: int | None = None) -> MismatchError:
    """Build the error for bytes that distmetrics does not send."""
    sender = "a rank" if rank is None else Ranks([rank])
    return MismatchError(
        [sender, f" sent data that is no frame of distmetrics: {why[:_SHOWN_OF_CAUSE]}"],
        likely="another collective of the same group got in between, or two versions of "
        "distmetrics.",
        do="make every rank call the same collectives in the same order, with one version "
        "installed.",
        peers=[] if rank is None else [rank],
    )


# What decoding wrong bytes raises. An exception of a class of the user's has interrupted it.
_OF_BAD_BYTES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
    pickle.PickleError,
    struct.error,
    zlib.error,
)


@contextmanager
def reading(what: str, rank: int | None = None) -> Iterator[None]:
    """Turn what goes wrong in the block, where bytes of a peer are read, into a MismatchError."""
    try:
        yield
    except _OF_BAD_BYTES as error:
        *_, (frame, line) = walk_tb(error.__traceback__)
        # Or the handler of a signal, which may strike here too, has raised it.
        if isinstance(error, DistmetricsError) or users_line(frame, line) is not None:
            raise
        raise not_ours(f"{what}: {type(error).__name__}: {error}", rank) from error
