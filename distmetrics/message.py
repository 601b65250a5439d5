"""Typed messages between ranks: one schema a message, encoded by it and decoded by type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self, TypeVar

import msgspec

M = TypeVar("M")
MALFORMED = (msgspec.MsgspecError, ValueError, RecursionError)  # what parse raises


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
        return write(_with_escapes(msgspec.to_builtins(message, builtin_types=(bytes,))))


def _with_escapes(value: Any) -> Any:
    """Return lists, dicts and texts with escapes for what UTF-8 cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_with_escapes(key): _with_escapes(each) for key, each in value.items()}
    return [_with_escapes(each) for each in value] if isinstance(value, list | tuple) else value


@functools.cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def parse(kind: type[M], data: bytes) -> M:
    """Return the message of a type that :func:`encode` has written; raise one of ``MALFORMED``."""
    message: M = _decoder(kind).decode(data)  # type: ignore[arg-type]
    return message
