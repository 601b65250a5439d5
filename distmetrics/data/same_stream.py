"""Whether all ranks read the same stream, by checksums of values of any kind."""

import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from distmetrics.collectives.buckets import to_bytes, unsendable
from distmetrics.collectives.exchange import note_read
from distmetrics.collectives.ops import meet
from distmetrics.comm.communicator import Communicator

_PLAIN = frozenset((str, bytes, int, float, complex, bool, range, type(None)))
_SAMPLE = 1 << 15  # elements of an array that are looked at, evenly spaced
_OBJECTS = 2  # containers around an object whose attributes are looked at


class SameStream:
    """Compares what ranks read of a stream.

    The first batches are compared before one is handed out, in the first pass. All batches of a
    pass are compared at the next call of all ranks, if all have read it to its end.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm.whole
        self._first = comm.world_size
        self._number = 0  # of the stream, once its first batches were compared
        self._passes = 0

    def read(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a pass."""
        self._passes += 1
        count = crc = 0
        for batch in batches:
            count += 1
            # Those on an accelerator would let each batch wait for it.
            known = checksum(batch, waits=count <= self._first)
            crc = zlib.crc32(known.to_bytes(4, "little"), crc)
            if count == self._first:
                self._compare_first(count, crc)
            yield batch
        if count < self._first:
            self._compare_first(count, crc)
        note_read(self._comm, self._number, self._passes, count, crc)

    def _compare_first(self, count: int, crc: int) -> None:
        if self._number:  # done in an earlier pass
            return
        number = self._comm.state.count + 1
        note_read(self._comm, number, 0, count, crc)
        meet("exact's first batches", comm=self._comm)
        self._number = number


def checksum(value: Any, *, waits: bool = True, depth: int = 0) -> int:
    """Return the checksum of a batch; without ``waits`` by shape of what is on an accelerator.

    >>> checksum({"b": 1, "a": [2.0]}) == checksum({"a": [2.0], "b": 1})
    True
    """

    def inside(part: Any) -> int:
        return checksum(part, waits=waits, depth=depth + 1)

    known: Any = ""
    if type(value) in _PLAIN:
        known = value
    elif isinstance(value, Tensor):
        known = _of_tensor(value, waits=waits)
    elif callable(value):
        pass  # its type alone
    elif isinstance(value, Mapping):
        known = sorted((inside(key), inside(item)) for key, item in value.items())
    elif isinstance(value, set | frozenset):
        known = sorted(map(inside, value))
    elif isinstance(value, list | tuple | deque):
        known = [each if type(each) in _PLAIN else inside(each) for each in value]
    elif hasattr(value, "__array_interface__"):  # of NumPy, or an image
        known = _of_array(sys.modules["numpy"].asarray(value))
    elif depth <= _OBJECTS:
        known = inside(getattr(value, "__dict__", {}))
    return zlib.crc32(f"{type(value).__name__} {known!r}".encode())


def _of_tensor(x: Tensor, *, waits: bool) -> Any:
    is_dense = type(x).__torch_dispatch__ is Tensor.__torch_dispatch__ and not x.is_nested
    if not is_dense or any(unsendable(x.dtype, x.layout, x.is_meta)):
        return str(x.dtype)
    about = x.dtype, tuple(x.shape)
    if not waits and not x.is_cpu:
        return about
    if x.numel() > _SAMPLE:
        x = x.reshape(-1)[:: x.numel() // _SAMPLE | 1]
    return about, zlib.crc32(to_bytes(x.resolve_conj().resolve_neg()))


def _of_array(x: Any) -> Any:
    if x.dtype.hasobject:
        return checksum(x.tolist())
    flat = x.reshape(-1)
    return x.dtype.str, x.shape, zlib.crc32(flat[:: len(flat) // _SAMPLE | 1].tobytes())
