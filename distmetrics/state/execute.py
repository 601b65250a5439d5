"""Carry out a plan: from the runs of bytes that the ranks sent to the state of all ranks. Touches
no metric.
"""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.again import Again
from distmetrics.collectives.exchange import Judge, exchange, inline_capacity, new_frame
from distmetrics.collectives.pack import Bucket, pack, unpack
from distmetrics.collectives.reduce import reduce_large
from distmetrics.comm.base import Communicator, Op, fold
from distmetrics.state.describe import Outgoing
from distmetrics.state.items import cut
from distmetrics.state.plan import Sent, SyncPlan, plan

_CPU = torch.device("cpu")
Parts = list[list[Tensor]]


def execute(
    comm: Communicator, mine: Outgoing, order: tuple[str, ...]
) -> tuple[SyncPlan, dict[str, Any]]:
    """Agree on a plan, move the data, combine it.

    Args:
        comm: who talks.
        mine: what this rank sends.
        order: paths of all states, on any rank.

    Returns: the plan, and for each of its paths the combined state: a tensor, or a list for "items"
        and "object"; for "each" a list of what the ranks have sent, frozen.

    Raises:
        MismatchError: the metrics differ between ranks (on every rank, before data moves).
    """
    moved = _move(comm, mine, order)
    sync = moved.plan
    if moved.expected is not None and moved.expected.fits(sync):
        result = moved.expected.fill(moved)
        if moved.again is not None:
            moved.again.keep(comm)
    elif sync.rides_along:
        each = zip(moved.runs, sync.alike, sync.sent, strict=True)
        rows = [run if alike else _align(run, sent, sync) for (run, _), alike, sent in each]
        result = _combine_fixed(rows, sync, comm)
    else:
        row = moved.inline if sync.alike[comm.rank] else _align(moved.inline, mine.sent, sync)
        result = _combine_fixed([row], sync, comm)
    if sync.lists:
        own = {
            path: owned.items
            for path, owned in mine.own.items()
            if owned.joined.device == comm.device
        }
        _combine_lists(moved.parts or _parts(moved.runs, sync), sync, result, comm.rank, own)
    for path, other in sync.aliases:
        result[path] = result[other]
    return sync, result


class _Moved(NamedTuple):
    """What is there after the exchange: the plan, every rank's runs of bytes, this rank's own, what
    was expected.

    ``again``: what is kept for the next time, where all ranks have sent the same; ``parts``: each
    rank's lists, where they have been taken apart already.
    """

    plan: SyncPlan
    runs: list[tuple[Tensor, Tensor]]
    inline: Tensor
    expected: _Expected | None
    again: Again | None = None
    parts: Parts | None = None


def _parts(runs: Sequence[tuple[Tensor, Tensor]], sync: SyncPlan) -> Parts:
    """Take every rank's lists apart: for each rank the tensors that it has sent, as views."""
    return [unpack(run, sent.bulk) for (_, run), sent in zip(runs, sync.sent, strict=True)]


def _move(comm: Communicator, mine: Outgoing, order: tuple[str, ...]) -> _Moved:
    """Pack, agree on a plan, exchange; what too large data still needs is up to the plan."""
    capacity = inline_capacity(comm.world_size)
    together = mine.device == _CPU  # the counts are there
    made: list[SyncPlan] = []
    expected: list[_Expected | None] = [None]

    def judge(blobs: Sequence[bytes]) -> None:
        made.append(plan(tuple(blobs), order, comm.rank, capacity))

    def meanwhile() -> None:
        expected.append(_expect(comm, mine, order, capacity))

    again = _again(comm, mine, order, capacity) if together else None
    if again is not None:
        return _move_again(comm, again, mine, judge, made)
    if mine.sent.inline.nbytes <= capacity:
        frame, inline, room = new_frame(
            comm, mine.manifest, mine.sent.inline.nbytes, mine.sent.bulk.nbytes
        )
        pack(mine.fixed, mine.sent.inline, comm.device, together=together, into=inline)
        bulk = _pack_lists(comm, mine, room if room.numel() else None)
        runs = exchange(comm, mine.manifest, inline, bulk, judge, frame=frame, meanwhile=meanwhile)
    else:
        inline = pack(mine.fixed, mine.sent.inline, comm.device, together=together)
        runs = exchange(comm, mine.manifest, inline.new_empty(0), _pack_lists(comm, mine), judge)
    return _Moved(made[0], runs, inline, expected[-1])


def _pack_lists(comm: Communicator, mine: Outgoing, into: Tensor | None = None) -> Tensor:
    return (
        pack(mine.lists, mine.sent.bulk, comm.device, into=into)
        if mine.lists
        else _nothing(comm.device)
    )


@functools.lru_cache(maxsize=8)
def _nothing(device: torch.device) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device)


class _Prepared(NamedTuple):
    """What a sync that is made again keeps: its plan, and views of the buckets that are sent and
    received.

    ``lists``: views of the buckets of the lists that ride along. ``parts``: views of every rank's
    such lists, where all are joined, which copies them; else None.
    """

    plan: SyncPlan
    order: tuple[str, ...]
    sent: list[Tensor]
    received: list[list[Tensor]]
    lists: list[Tensor]
    parts: Parts | None


def _again(
    comm: Communicator, mine: Outgoing, order: tuple[str, ...], capacity: int
) -> Again | None:
    """Return what was kept of the last sync like this one, where every rank's bytes are reduced as
    they are.
    """
    again = Again.of(comm, mine.manifest, mine.sent.inline.nbytes, mine.sent.bulk.nbytes)
    if again is None or (again.more is not None and again.more.order is order):
        return again
    sync = _alike(comm, mine, order, capacity)
    if sync is None:
        again.refuse(comm)
        return None
    with torch.inference_mode(False):  # what is made in that mode can't be written to outside of it
        sent = [bucket.view(again.inline) for bucket in mine.sent.inline.buckets]
        received = [[bucket.view(run) for run in again.runs] for bucket in sync.agreed.buckets]
        joined = again.bulk is not None and all(state.kind == "cat" for state in sync.lists)
        parts = _parts([*zip(again.runs, again.bulks, strict=True)], sync) if joined else None
        lists = (
            []
            if again.bulk is None
            else [bucket.view(again.bulk) for bucket in mine.sent.bulk.buckets]
        )
    again.more = _Prepared(sync, order, sent, received, lists, parts)
    return again


def _move_again(
    comm: Communicator, again: Again, mine: Outgoing, judge: Judge, made: list[SyncPlan]
) -> _Moved:
    """Exchange as :func:`_move` does, with what was kept; it is kept on where all ranks have sent
    the same.
    """
    prepared: _Prepared = again.more
    expected: list[_Expected] = []
    for bucket, view in zip(mine.sent.inline.buckets, prepared.sent, strict=True):
        bucket.fill(view, bucket.pick(mine.fixed))
    bulk = _pack_lists(comm, mine) if again.bulk is None else again.bulk
    for bucket, view in zip(mine.sent.bulk.buckets, prepared.lists, strict=bool(prepared.lists)):
        bucket.fill(view, [x if x.is_cpu else x.cpu() for x in bucket.pick(mine.lists)])
    runs = again.exchange(comm, bulk, lambda: expected.append(_Expected.of(prepared.plan, _CPU)))
    if runs is None:
        runs = again.finish(comm, bulk, judge)
        return _Moved(made[0], runs, again.inline, expected[-1])
    if (
        again.bulk is not None and prepared.parts is None
    ):  # lists that are cut from it outlive this exchange
        runs = [(run, data.clone()) for run, data in runs]
    return _Moved(prepared.plan, runs, again.inline, expected[-1], again, prepared.parts)


@dataclass(frozen=True, slots=True)
class _Expected:
    """States of fixed size as they will be if every rank sends what this one does, but for the
    numbers in them.

    Making hundreds of tensors takes as long as a small collective; so it is done while that is
    under way.

    Attributes:
        plan: of that case.
        wholes: for each bucket the run of elements that ``result`` is views of.
        result: for each path in the plan's layout the combined state.
    """

    plan: SyncPlan
    wholes: tuple[Tensor, ...]
    result: dict[str, Any]

    @classmethod
    def of(cls, sync: SyncPlan, device: torch.device) -> _Expected:
        """Make room for the states of a plan."""
        wholes = []
        result: dict[str, Any] = {}
        for bucket, paths in zip(sync.agreed.buckets, sync.bucket_paths, strict=True):
            wholes.append(torch.empty(bucket.elements, dtype=bucket.dtype, device=device))
            result.update(zip(paths, bucket.split(wholes[-1]), strict=True))
        return cls(sync, tuple(wholes), result)

    def fits(self, sync: SyncPlan) -> bool:
        """Whether it has come so, for states of fixed size; lists may have any length."""
        same = self.plan.paths == sync.paths and self.plan.agreed == sync.agreed
        return self.plan is sync or (sync.in_place and same)

    def fill(self, moved: _Moved) -> dict[str, Any]:
        """Put the numbers in, now that the data is here."""
        buckets = self.plan.agreed.buckets
        again = moved.again
        views = (
            again.more.received
            if again is not None
            else [[bucket.view(run) for run, _ in moved.runs] for bucket in buckets]
        )
        for bucket, rows, whole in zip(buckets, views, self.wholes, strict=True):
            fold(rows, _op(bucket), out=whole)
            if bucket.key == "mean":
                whole /= len(rows)
        return self.result


def _alike(
    comm: Communicator, mine: Outgoing, order: tuple[str, ...], capacity: int
) -> SyncPlan | None:
    """Return the plan of the most common case: all ranks send what this one does, and reduce the
    bytes as they are.
    """
    if mine.manifest.problem is not None:
        return None
    sync = plan((mine.manifest.encode(),) * comm.world_size, order, comm.rank, capacity)
    return sync if sync.in_place else None


def _expect(
    comm: Communicator, mine: Outgoing, order: tuple[str, ...], capacity: int
) -> _Expected | None:
    """Make room for the most common case, if what this rank sends allows it."""
    sync = _alike(comm, mine, order, capacity)
    return None if sync is None else _Expected.of(sync, comm.device)


def _align(run: Tensor, sent: Sent, sync: SyncPlan) -> Tensor:
    """Bring one rank's states into the layout that all share; what it lacks is filled with what
    changes nothing.
    """
    have = unpack(run, sent.inline)
    tensors: list[Tensor] = [run] * len(sync.paths)
    for bucket in sync.agreed.buckets:
        for index in bucket.members:
            path, shape = sync.paths[index], sync.agreed.shapes[index]
            if path in sent.place:
                tensors[index] = have[sent.place[path]].to(bucket.dtype)
            else:
                tensors[index] = torch.full(
                    shape, _neutral(bucket), dtype=bucket.dtype, device=run.device
                )
    return pack(tensors, sync.agreed, run.device)


def _neutral(bucket: Bucket) -> float | int | bool:
    if bucket.key not in ("max", "min"):
        return 0
    if bucket.dtype == torch.bool:
        return bucket.key == "min"
    if bucket.dtype.is_floating_point:
        return math.inf if bucket.key == "min" else -math.inf
    limits = torch.iinfo(bucket.dtype)
    return limits.max if bucket.key == "min" else limits.min


def _combine_fixed(rows: Sequence[Tensor], sync: SyncPlan, comm: Communicator) -> dict[str, Any]:
    """Fold the reduced states, stack the others: one operation a bucket, then one view a state."""
    result: dict[str, Any] = {}
    for place, bucket in enumerate(sync.agreed.buckets):
        views = [bucket.view(row) for row in rows]
        if bucket.key == "stack":
            all_rows = torch.stack(views if sync.rides_along else comm.all_gather(views[0]))
            ranks = {state.path: state.ranks for state in sync.states}
            for index, part in zip(bucket.members, bucket.split(all_rows), strict=True):
                path = sync.paths[index]
                here = part[list(ranks[path])]
                result[path] = (
                    here[0] if len(here) == 1 else here
                )  # one rank's state needs no stack
            continue
        whole = _fold(views, bucket, sync.rides_along, comm)
        paths = sync.bucket_paths[place]
        parts: Sequence[Tensor] = bucket.split(whole)
        if bucket.key == "mean":
            parts = [
                _mean(part, sync.contributors[path], bucket.dtype)
                for path, part in zip(paths, parts, strict=True)
            ]
        result.update(zip(paths, parts, strict=True))
    return result


def _mean(total: Tensor, contributors: int, dtype: torch.dtype) -> Tensor:
    """Divide a wide sum; the mean of integers and bools is no integer, and one rank's value is left
    as it is.
    """
    if contributors == 1:
        return total.to(dtype)
    mean = total / contributors
    return mean.to(dtype) if dtype.is_floating_point or dtype.is_complex else mean


def _fold(views: Sequence[Tensor], bucket: Bucket, rides_along: bool, comm: Communicator) -> Tensor:
    """Reduce a bucket, in its own dtype; a mean is left as the sum that is to be divided, which
    needs more room.
    """
    op, dtype = _op(bucket), bucket.dtype
    if dtype in (
        torch.bfloat16,
        torch.float16,
    ):  # half precision loses counts above 256 or 2048: fold in float32
        views = [view.float() for view in views]
    elif bucket.key == "mean" and not dtype.is_floating_point and not dtype.is_complex:
        views = [view.long() for view in views]
    elif dtype == torch.bool:
        views = [
            view.to(torch.uint8) for view in views
        ]  # the sum of bools is "any", as it is within one process
        op = "max" if op == "sum" else op
    whole = fold(views, op) if rides_along else reduce_large(comm, views[0], op)
    return whole if bucket.key == "mean" else whole.to(dtype)


def _op(bucket: Bucket) -> Op:
    return "max" if bucket.key == "max" else "min" if bucket.key == "min" else "sum"


def _combine_lists(
    per_rank: Parts,
    sync: SyncPlan,
    result: dict[str, Any],
    me: int,
    own: Mapping[str, list[Tensor]],
) -> None:
    """Join what has a length of its own on each rank, in rank order; ``own`` items of rank ``me``
    need no cutting.
    """
    for state in sync.lists:
        parts = [per_rank[r][sync.sent[r].place[state.path]] for r in state.ranks]
        if state.kind == "cat":
            joined = torch.cat(
                [part if part.dtype is state.dtype else part.to(state.dtype) for part in parts]
            )
            numbers = all(state.path in sync.sent[r].items for r in state.ranks)
            result[state.path] = (
                list(joined.unbind()) if numbers else joined
            )  # as one process would hold them
        elif state.kind == "items":
            items: list[Tensor] = []
            for r, part in zip(state.ranks, parts, strict=True):
                if r == me and part.dtype == state.dtype and state.path in own:
                    items += own[state.path]
                    continue
                form, at = sync.sent[r].items[state.path]
                items += cut(part.to(state.dtype), form, None if at is None else per_rank[r][at])
            result[state.path] = items
        elif state.kind == "each":
            result[state.path] = parts
        else:
            lists = [pickle.loads(bytes(part.tolist())) for part in parts]  # noqa: S301
            result[state.path] = [item for part in lists for item in part]
