"""The ids of samples: whose sample counts, which ids came twice, which are missing. Pure."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distmetrics.collectives.buckets import short_name
from distmetrics.collectives.samples.columns import narrowed
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.errors import InputTypeError

Ids = Tensor | list[str]
_INTEGERS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
)
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
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise InputTypeError(f"{what} has a number of more than 64 bits", do=_EXAMPLES) from error


def _from_tensor(ids: Tensor, what: str) -> Tensor:
    if ids.numel() == 0:  # of whatever dtype an empty tensor has by default
        return torch.empty(0, dtype=torch.int64)
    if ids.ndim != 1 or ids.dtype not in _INTEGERS:
        shown = f"{short_name(ids.dtype)}{[*ids.shape]}"
        raise InputTypeError(f"{what} is a tensor {shown}", do=_EXAMPLES)
    return ids.detach().to("cpu", torch.int64)


def to_part(ids: Ids) -> Tensor:
    """Return ids as a tensor that travels; equal steps, as samplers deal, are three numbers."""
    if not isinstance(ids, Tensor):
        return serialize(ids)
    if len(ids) > _STEPS:
        start = ids[0]
        step = ids[1] - start
        count = torch.tensor(len(ids))
        steps = start + step * torch.arange(len(ids))
        if torch.equal(ids, steps):
            return torch.stack([start, step, count])[None]
    return narrowed(ids)


def from_part(
    part: Tensor,
    count: int,
    is_text: bool,
) -> Ids:
    """Return the ids that a peer has sent; raise anything for what is none."""
    if is_text:
        texts = deserialize(part)
        if len(texts) != count or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{len(texts)} strings for {count} samples")
        return [*texts]
    if part.dtype not in _INTEGERS:
        raise ValueError(f"ids of {part.dtype}")
    ids = part.to("cpu", torch.int64)
    if ids.ndim == 2:
        start, step, number = ids.view(_STEPS)
        if number != count:  # before memory is taken for what a peer may have made up
            raise ValueError(f"{int(number)} ids for {count} samples")
        ids = start + step * torch.arange(count)
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
        if self.names is None:
            return chosen
        return [self.names[number] for number in chosen.tolist()]

    def samples(
        self,
        start: int,
        stop: int,
    ) -> tuple[list[Tensor], Tensor]:
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
        edges = torch.searchsorted(arrived, ends).tolist()
        own = []
        first = 0
        before = 0
        for edge, count in zip(edges, self.counts, strict=True):
            own.append(arrived[first:edge] - before)
            first = edge
            before += count
        return own, torch.searchsorted(arrived, arrival)

    def owners(self, arrival: Tensor) -> Tensor:
        """Return the ranks of samples, from their places among those of all ranks."""
        return torch.searchsorted(self._ends(), arrival, right=True)

    def repeated_rows(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return the samples of a rank whose ids came more than once, and their places in all."""
        is_own = self.owners(self.repeated_arrival) == rank
        places = is_own.nonzero().view(-1)
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
                return low + torch.arange(len(joined)), places
    return joined.sort(stable=True)


def _as_numbers(per_rank: Sequence[Ids]) -> tuple[Tensor, list[str] | None]:
    """Join the ids of all ranks; strings as their places among all strings, sorted."""
    if all(isinstance(ids, Tensor) for ids in per_rank):
        return torch.cat([*per_rank]), None  # type: ignore[list-item]
    texts = [text for ids in per_rank for text in ids]
    names = sorted(set(texts))
    place = {name: index for index, name in enumerate(names)}
    return torch.tensor([place[text] for text in texts], dtype=torch.int64), names
