"""An exchange that is made again, with other numbers: what it works on is made once, and kept.

Between two collectives a job's own work takes the processor's caches, so that a tensor that is made
anew, and an operation of torch that is met for the first time, cost ten times what they do in a
loop. From the second exchange of a manifest on there is little to make: the frame, the room for the
others' frames and the views of both are there, and one comparison of bytes a rank tells whether all
is as it was.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from distmetrics.collectives.exchange import (
    Judge,
    exchange,
    frame_size,
    gather_padded,
    head_of,
    inline_capacity,
    new_frame,
    parts_of,
)
from distmetrics.collectives.manifest import Manifest
from distmetrics.collectives.past import at_one_line, past_of
from distmetrics.comm.base import Communicator, in_call

_MOST = 8  # exchanges of one communicator for which something is kept
_LARGEST = 1 << 20  # bytes that one of them may keep


class Keeping(Communicator, Protocol):
    """A communicator that lasts from call to call, and can receive into tensors that are there
    already.

    Attributes:
        kept: what layers above keep with it, by keys of their own.
    """

    kept: dict[Any, Any]

    def all_gather(
        self,
        x: Tensor,
        meanwhile: Callable[[], None] | None = None,
        into: list[Tensor] | None = None,
    ) -> list[Tensor]:
        """Every rank's ``x``; ``into``: rows of one contiguous tensor, each like ``x``, for the
        others'.
        """
        ...


class _Seen(NamedTuple):
    """An exchange that was made; held, so that no other manifest gets its id. ``again``: whether to
    keep more.
    """

    manifest: Manifest
    again: bool


class Again:
    """One exchange, ready to be made as often as it falls due; small data, in the memory of the
    CPU.

    Args:
        comm: who talks.
        manifest: what this rank is about to do each time.
        inline_bytes: of its data that rides along; ``bulk_bytes``: of that which does so only where
            it fits beside.

    Attributes:
        inline: where the data goes that rides along.
        bulk: where the other goes, if that rides along too, else None.
        runs: every rank's inline data, after an exchange that found all alike; ``bulks``: what else
            rode along. The next exchange receives into the same memory: what is to outlive this one
            must be copied.
        more: what a layer above has made for it.
    """

    def __init__(
        self, comm: Keeping, manifest: Manifest, inline_bytes: int, bulk_bytes: int
    ) -> None:
        size, me = frame_size(comm.world_size), comm.rank
        self._manifest, self._past = manifest, past_of(comm)
        self._bulk_bytes, self._head = (
            bulk_bytes,
            head_of(comm, manifest, inline_bytes, bulk_bytes) or b"",
        )
        with torch.inference_mode(
            False
        ):  # what is made in that mode can't be written to outside of it
            self._frame, *mine = new_frame(comm, manifest, inline_bytes, bulk_bytes)
            rows = torch.empty(
                comm.world_size, size, dtype=torch.uint8, device=comm.device
            )  # not a default device's
            self._rows = [*rows.unbind()]
        self._others = [row.data_ptr() for rank, row in enumerate(self._rows) if rank != me]
        parts = [parts_of(row, inline_bytes, bulk_bytes, comm.world_size) for row in self._rows]
        self.inline, bulk = parts[me] = mine[0], mine[1]
        self.bulk = bulk if bulk.numel() else None
        self.runs, self.bulks = zip(*parts, strict=True)
        self.more: Any = None

    @classmethod
    def of(cls, comm: Any, manifest: Manifest, inline_bytes: int, bulk_bytes: int) -> Again | None:
        """Return what is kept for this exchange, from its second time on; nobody else gets it
        before :meth:`keep`.

        None where nothing is kept: by other communicators, and of frames that do not hold all there
        is to say.
        """
        kept: dict[int, _Seen | Again] | None = getattr(comm, "kept", None)
        if (
            kept is None
            or comm.device.type != "cpu"
            or inline_bytes > inline_capacity(comm.world_size)
        ):
            return None
        found = kept.pop(id(manifest), None)
        if isinstance(found, Again):
            return found if found._past == past_of(comm) else None
        if found is not None:
            kept[id(manifest)] = found
            return cls(comm, manifest, inline_bytes, bulk_bytes) if found.again else None
        if frame_size(comm.world_size) * comm.world_size <= _LARGEST:
            kept[id(manifest)] = _Seen(
                manifest, head_of(comm, manifest, inline_bytes, bulk_bytes) is not None
            )
            if len(kept) > _MOST:
                kept.pop(next(iter(kept)), None)
        return None

    def keep(self, comm: Any) -> None:
        """Let the next exchange have it: nothing works on its memory any more."""
        comm.kept[id(self._manifest)] = self

    def refuse(self, comm: Any) -> None:
        """Have none made for this exchange any more."""
        comm.kept[id(self._manifest)] = _Seen(self._manifest, again=False)

    def exchange(
        self, comm: Any, bulk: Tensor, meanwhile: Callable[[], None]
    ) -> list[tuple[Tensor, Tensor]] | None:
        """Make it; return every rank's data, as :func:`exchange`, or None where a rank sent
        anything but the same.

        What rode along is in memory that is kept, see :attr:`runs`.
        """
        head = self._head
        with in_call(self._manifest.call()):
            comm.all_gather(self._frame, meanwhile, into=self._rows)
            if any(ctypes.string_at(other, len(head)) != head for other in self._others):
                return None
            at_one_line(comm)
            if not self._bulk_bytes:
                return [(run, bulk) for run in self.runs]
            if self.bulk is not None:
                return [*zip(self.runs, self.bulks, strict=True)]
            rest = gather_padded(comm, bulk, self._bulk_bytes)
        return [(run, row[: self._bulk_bytes]) for run, row in zip(self.runs, rest, strict=True)]

    def finish(self, comm: Any, bulk: Tensor, judge: Judge) -> list[tuple[Tensor, Tensor]]:
        """Go on from where :meth:`exchange` has returned None, as if it were the first time."""
        return exchange(
            comm, self._manifest, self.inline, bulk, judge, frame=self._frame, rows=self._rows
        )
