"""Messages of peers, decoded by type: malformed bytes are our error, which names the rank.

A peer may run another version, or be in hands that mean harm. So bytes are read as data of the
announced type alone, sizes are checked before memory is taken, and nothing raw of Python, torch or
msgspec gets out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

import msgspec

from distmetrics.comm.call_site import is_of_python, is_user_code
from distmetrics.errors import DistmetricsError, MismatchError, Ranks
from distmetrics.message import Message, encode, parse

__all__ = [
    "LARGEST_DATA",
    "LARGEST_HEADER",
    "Message",
    "Shape",
    "Size",
    "decode",
    "encode",
    "is_raised_by_user",
    "not_ours",
    "reading",
]

LARGEST_HEADER = 1 << 24  # bytes of what one rank tells of a call
LARGEST_DATA = 1 << 40  # bytes that one rank sends in a call
_SHOWN_OF_CAUSE = 200  # characters

M = TypeVar("M")
Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_DATA)]
Shape = Annotated[tuple[Size, ...], msgspec.Meta(max_length=64)]  # torch's most dimensions


def decode(kind: type[M], data: bytes, what: str, rank: int | None = None) -> M:
    """Return the message that a peer has sent.

    Args:
        kind: its type.
        data: its bytes, of which there are at most as many as were announced.
        what: what errors call it.
        rank: the rank that has sent it, where one knows.

    Raises:
        MismatchError: it is not such a message.
    """
    with reading(what, rank):
        return parse(kind, data)


def not_ours(why: str, rank: int | None = None) -> MismatchError:
    """Build the error for bytes that distmetrics does not send.

    Args:
        why: what is wrong with them.
        rank: the rank that has sent them, where one knows.
    """
    sender = "a rank" if rank is None else Ranks([rank])
    return MismatchError(
        [sender, f" sent data that is no frame of distmetrics: {why[:_SHOWN_OF_CAUSE]}"],
        likely="another collective of the same group got in between, or two versions of "
        "distmetrics.",
        do="make every rank call the same collectives in the same order, with one version "
        "installed.",
        peers=[] if rank is None else [rank],
    )


@contextmanager
def reading(what: str, rank: int | None = None) -> Iterator[None]:
    """Turn what goes wrong in the block, where bytes of a peer are read, into our error.

    Args:
        what: is read.
        rank: the rank that has sent it, where one knows.

    Raises:
        MismatchError: it is not what distmetrics sends.
    """
    try:
        yield
    except DistmetricsError:
        raise
    except Exception as error:
        if is_raised_by_user(error):  # by the handler of a signal, which may strike here too
            raise
        raise not_ours(f"{what}: {type(error).__name__}: {error}", rank) from error


def is_raised_by_user(error: BaseException) -> bool:
    """True for an exception of the user's own code, such as the handler of a signal."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    file = "" if traceback is None else traceback.tb_frame.f_code.co_filename
    return is_user_code(file) and not is_of_python(file)
