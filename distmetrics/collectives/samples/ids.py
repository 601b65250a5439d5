"""The ids of samples: whose sample counts, which ids came twice, which are missing. Pure."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.pack import short_name, to_bytes
from distmetrics.collectives.samples.columns import from_texts, narrowed, to_texts
from distmetrics.errors import DistmetricsError, InputError, InputTypeError

Ids = Tensor | list[str]
_SHOWN = 8  # ids that an error lists
_STEPS = 3  # numbers in which ids with equal steps travel
_EXAMPLES = "pass integers or strings, one for each sample."


def read_ids(ids: Any, what: str = "ids") -> Ids:
    """Return a caller's ids as int64 on the CPU, or as a list of strings.

    Raises:
        InputTypeError: they are neither.
    """
    if isinstance(ids, Tensor):
        return _from_tensor(ids, what)
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InputTypeError(f"{what} is a {type(ids).__name__}", do=_EXAMPLES)
    values = ids.tolist() if hasattr(ids, "tolist") else [*ids]
    if values and all(isinstance(value, str) for value in values):
        return values
    odd = [value for value in values if isinstance(value, bool) or not hasattr(value, "__index__")]
    if odd:
        raise InputTypeError(f"{what} has a {type(odd[0]).__name__} in it", do=_EXAMPLES)
    try:
        return torch.tensor([*map(operator.index, values)], dtype=torch.int64)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise InputTypeError(f"{what} has a number of more than 64 bits", do=_EXAMPLES) from error


def _from_tensor(ids: Tensor, what: str) -> Tensor:
    if ids.numel() == 0:  # of whatever dtype an empty tensor has by default
        return torch.empty(0, dtype=torch.int64)
    plain = ids.dtype not in (torch.bool, torch.uint64) and not ids.dtype.is_floating_point
    if ids.ndim != 1 or ids.is_complex() or not plain:
        shown = f"{short_name(ids.dtype)}{[*ids.shape]}"
        raise InputTypeError(f"{what} is a tensor {shown}", do=_EXAMPLES)
    return ids.detach().to("cpu", torch.int64)


def to_parts(ids: Ids) -> list[Tensor]:
    """Return ids as tensors that travel: steps, which samplers deal, as start, step and number."""
    if not isinstance(ids, Tensor):
        return from_texts(ids)
    if len(ids) > _STEPS:
        start, step = int(ids[0]), int(ids[1] - ids[0])
        if torch.equal(ids, start + step * torch.arange(len(ids))):
            return [torch.tensor([[start, step, len(ids)]])]
    return [narrowed(ids)]


def from_parts(parts: Sequence[Tensor], count: int) -> Ids:
    """Return the ids that a peer has sent; raise anything for what is none."""
    ids, *data = parts
    if data:
        return to_texts(ids, *data, count=count)
    if ids.dtype.is_floating_point or ids.is_complex():
        raise ValueError(f"ids of {ids.dtype}")
    ids = ids.to("cpu", torch.int64)
    if ids.ndim == 2:
        start, step, number = ids.view(3).tolist()
        ids = start + step * torch.arange(number)
    if ids.shape != (count,):
        raise ValueError(f"ids of the shape {[*ids.shape]} for {count} samples")
    return ids


@dataclass(frozen=True, slots=True)
class Order:
    """Every id once, ascending, and where its sample is.

    Attributes:
        numbers: the ids; of strings, their places in ``names``.
        names: every string once, sorted; None where ids are numbers.
        arrival: for each id, the place of its sample among those of all ranks, joined in rank
            order; of several samples the first rank's counts.
        counts: how many samples each rank has.
        repeated: for each sample whose id came more than once, in the order of ids and then of
            ranks: the place of its id here.
        repeated_arrival: the place of each of them among the samples of all ranks.
    """

    numbers: Tensor
    names: list[str] | None
    arrival: Tensor
    counts: tuple[int, ...]
    repeated: Tensor
    repeated_arrival: Tensor

    @classmethod
    def of(cls, per_rank: Sequence[Ids]) -> Order:
        """Put the ids of all ranks in order."""
        counts = tuple(map(len, per_rank))
        joined, names = _as_numbers(per_rank)
        values, places = _sorted(joined)
        is_first = torch.ones_like(values, dtype=torch.bool)
        is_first[1:] = values[1:] != values[:-1]
        if is_first.all():
            return cls(values, names, places, counts, places[:0], places[:0])
        position = is_first.cumsum(0) - 1
        several = torch.zeros(int(position[-1]) + 1, dtype=torch.bool)
        several[position[~is_first]] = True
        again = several[position]
        return cls(
            values[is_first], names, places[is_first], counts, position[again], places[again]
        )

    @property
    def dropped(self) -> int:
        """How many samples are not counted, since their id came before."""
        return sum(self.counts) - len(self.numbers)

    def ids(self, places: Any = slice(None)) -> Ids:
        """Return the ids at some places, as the caller knows them."""
        chosen = self.numbers[places]
        return chosen if self.names is None else [self.names[number] for number in chosen.tolist()]

    def samples(self, start: int, stop: int) -> tuple[list[Tensor], Tensor]:
        """Return whose samples are those of some ids.

        Args:
            start: place of the first id.
            stop: the place after the last.

        Returns: which samples of each rank, ascending; for each id, the place of its sample among
            all of these, joined.
        """
        arrival = self.arrival[start:stop]
        if len(arrival) == sum(self.counts):  # all of them
            return [torch.arange(count) for count in self.counts], arrival
        arrived = arrival.sort().values
        ends = self._ends()
        edges = torch.searchsorted(arrived, ends).diff(prepend=ends[:0].new_zeros(1))
        rows = arrived.split_with_sizes(edges.tolist())
        before = [0, *ends.tolist()]
        own = [row - first for row, first in zip(rows, before, strict=False)]
        return own, torch.searchsorted(arrived, arrival)

    def owners(self, arrival: Tensor) -> Tensor:
        """Return the ranks of samples, from their places among those of all ranks."""
        return torch.searchsorted(self._ends(), arrival, right=True)

    def repeated_rows(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return the samples of a rank whose ids came more than once, and their places in all."""
        places = (self.owners(self.repeated_arrival) == rank).nonzero().view(-1)
        before = sum(self.counts[:rank])
        return self.repeated_arrival[places] - before, places

    def _ends(self) -> Tensor:
        return torch.tensor(self.counts, dtype=torch.int64).cumsum(0)


def _sorted(joined: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ids ascending and their places, those of equal ids ascending too."""
    if len(joined):
        low, high = map(int, joined.aminmax())
        if high - low + 1 == len(joined):  # most often no id is missing, and none came twice
            places = torch.full_like(joined, -1)
            places[joined - low] = torch.arange(len(joined))
            if (places >= 0).all():
                return torch.arange(low, high + 1), places
    return joined.sort(stable=True)


def _as_numbers(per_rank: Sequence[Ids]) -> tuple[Tensor, list[str] | None]:
    """Join the ids of all ranks; strings as their places among all strings, sorted."""
    if all(isinstance(ids, Tensor) for ids in per_rank):
        return torch.cat([*per_rank]), None  # type: ignore[list-item]
    texts = [text for ids in per_rank for text in ids]
    names = sorted(set(texts))
    place = {name: index for index, name in enumerate(names)}
    return torch.tensor([place[text] for text in texts], dtype=torch.int64), names


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
            self._ids = read_ids(expected, "expected")
            parts = [to_bytes(part.view(torch.uint8)) for part in to_parts(self._ids)]
            digest = hashlib.blake2b(b"".join(parts), digest_size=4).hexdigest()
            self.text = f", expected: {len(self._ids)} ids ({digest})"

    def check(self, order: Order, rank: int) -> None:
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

    def _check_number(self, order: Order, rank: int) -> None:
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
    missing: Ids, extra: Tensor, expected: int, order: Order, rank: int
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


def check_repeats(order: Order, digests: Tensor, rank: int) -> None:
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
