"""What is wrong with the ids of all ranks: missing, unexpected, or with two values. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.buckets import to_bytes
from distmetrics.collectives.samples.ids import Ids, Order, read_ids, to_part
from distmetrics.errors import DistmetricsError, InputError, InputTypeError

_SHOWN = 8  # ids that an error lists


class Expected:
    """The ids that must come: how many, or which; or whatever comes.

    Args:
        expected: a number of ids, ids, or None.

    Attributes:
        text: what ranks compare.
    """

    def __init__(self, expected: Any) -> None:
        self._count: int | None = None
        self._ids: Ids | None = None
        self.text = ""
        if isinstance(expected, int) and not isinstance(expected, bool):
            if expected < 0:
                raise InputError(f"expected= is {expected}, and there are no fewer ids than none")
            self._count = expected
            self.text = f", expected: {expected}"
        elif expected is not None:
            wanted = read_ids(expected, "expected")
            is_text = isinstance(wanted, list)
            self._ids = sorted(set(wanted)) if is_text else torch.unique(wanted)
            data = to_bytes(to_part(self._ids).reshape(-1).view(torch.uint8))
            digest = hashlib.blake2b(data, digest_size=4).hexdigest()
            self.text = f", expected: {len(self._ids)} ids ({digest})"

    def check(
        self,
        order: Order,
        rank: int,
    ) -> None:
        """Raise where ids are missing, or came unexpected; the same on every rank."""
        wanted = self._ids
        if self._count is not None:
            wanted = torch.arange(self._count)
            if order.names is not None:
                self._check_number(order, rank)
                return
        if wanted is None:
            return
        if isinstance(wanted, Tensor) != (order.names is None) and len(order.numbers):
            kinds = ("strings", "integers") if order.names is None else ("integers", "strings")
            raise InputTypeError(f"{kinds[0]} are expected as ids, and {kinds[1]} came", rank=rank)
        missing, extra = _differences(wanted, order)
        if len(missing) or len(extra):
            raise _wrong_ids(missing, extra, len(wanted), order, rank)

    def _check_number(
        self,
        order: Order,
        rank: int,
    ) -> None:
        if len(order.numbers) != self._count:
            raise InputError(
                f"{self._count} ids are expected, and {len(order.numbers)} came",
                per_rank=_summaries(order),
                notes=["No sample was moved."],
                do="pass the ids themselves as expected= to learn which are missing.",
                rank=rank,
            )


def _differences(wanted: Ids, order: Order) -> tuple[Ids, Tensor]:
    """Return the ids that did not come, and the places of those that nobody expects."""
    if isinstance(wanted, Tensor):
        missing: Ids = torch.unique(wanted[~torch.isin(wanted, order.numbers)])
        return missing, (~torch.isin(order.numbers, wanted)).nonzero().view(-1)
    names, known = order.names or [], set(wanted)
    missing = sorted(known.difference(names))
    extra = [place for place, name in enumerate(names) if name not in known]
    return missing, torch.tensor(extra, dtype=torch.int64)


def _wrong_ids(
    missing: Ids,
    extra: Tensor,
    expected: int,
    order: Order,
    rank: int,
) -> DistmetricsError:
    parts = []
    if len(missing):
        parts.append(f"{len(missing)} of {expected} expected ids did not come: {shown(missing)}")
    if len(extra):
        parts.append(f"{len(extra)} came that nobody expects: {shown(order.ids(extra))}")
    lines = _summaries(order)
    owners = order.owners(order.arrival[extra])
    peers = torch.unique(owners).tolist()
    for owner in peers:
        lines[owner] += f"; not expected: {shown(order.ids(extra[owners == owner]))}"
    return InputError(
        f"gather_samples: {'; '.join(parts)}",
        per_rank=lines,
        notes=["No sample was moved."],
        likely="a sampler that leaves samples out, or ids that count anew on every rank.",
        do="give each sample the id that it has in the whole data set, and deal out all of them.",
        rank=rank,
        peers=peers,
    )


def _summaries(order: Order) -> dict[int, str]:
    """Describe the ids of each rank in a line."""
    lines = {}
    owners = order.owners(order.arrival)
    for rank, count in enumerate(order.counts):
        own = order.ids(owners == rank)
        ends = f", {own[0]} to {own[-1]}" if len(own) else ""
        lines[rank] = f"{count} samples{ends}"
    return lines


def check_repeats(
    order: Order,
    digests: Tensor,
    rank: int,
) -> None:
    """Raise where samples of one id differ; the same on every rank.

    Args:
        order: of the ids.
        digests: of each sample whose id came more than once, ``[len(order.repeated), bytes]``.
        rank: the rank that asks.
    """
    groups = order.repeated
    is_first = torch.ones_like(groups, dtype=torch.bool)
    is_first[1:] = groups[1:] != groups[:-1]
    first = is_first.nonzero().view(-1)[is_first.cumsum(0) - 1]
    differs = (digests != digests[first]).any(1)
    odd = torch.unique(groups[differs])
    if len(odd) == 0:
        return
    members = torch.isin(groups, odd)
    owners = order.owners(order.repeated_arrival[members])
    lines = {}
    for owner in torch.unique(owners).tolist():
        theirs = torch.unique(groups[members][owners == owner])
        lines[owner] = f"has {shown(order.ids(theirs))}"
    raise InputError(
        f"gather_samples: {len(odd)} ids came with different values: {shown(order.ids(odd))}",
        per_rank=lines,
        notes=["No sample was moved."],
        likely="ids that count anew on every rank; or a sample that was dealt out twice, and whose "
        "values depend on its batch or on chance.",
        do="give each sample the id that it has in the whole data set, and deal it out once.",
        rank=rank,
        peers=lines,
    )


def shown(ids: Ids) -> str:
    """Write ids in a line; the first few of many.

    >>> print(shown(torch.arange(3)), "and", shown(["b", "c"]))
    0, 1, 2 and 'b', 'c'
    """
    first = ids[:_SHOWN]
    values = first.tolist() if isinstance(first, Tensor) else first
    more = f", … ({len(ids)})" if len(ids) > _SHOWN else ""
    return ", ".join(map(repr, values)) + more
