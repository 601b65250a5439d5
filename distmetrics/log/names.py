"""Which names ranks have logged, and where the numbers of each lie. Pure.

Ranks that have logged the same names have the same digest of them, so the names themselves travel
once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from distmetrics.collectives.buckets import from_bytes
from distmetrics.comm.communicator import fold
from distmetrics.log.kinds import SQUARES, Kind, growth
from distmetrics.message import Message, encode


class Names(Message, frozen=True, eq=False, dict=True):
    """Names and kinds, in the order in which their numbers travel; marks are the last.

    A subclass may tell more of them.
    """

    kinds: dict[str, Kind]  # by name, sorted
    # Whether each name has a mark, of which the largest counts: 1 if it was logged, else -inf.
    is_marked: bool = False

    @classmethod
    def of(cls, kinds: Mapping[str, Kind], *, is_marked: bool = False) -> Names:
        """Return names in their order."""
        return cls(dict(sorted(kinds.items())), is_marked)

    @cached_property
    def data(self) -> bytes:
        """What travels."""
        return encode(self)

    @cached_property
    def digest(self) -> str:
        """A hash: ranks that log the same have the same."""
        return hashlib.blake2b(self.data, digest_size=16).hexdigest()

    @cached_property
    def size(self) -> int:
        """The count of all numbers."""
        return sum(kind.count for kind in self.kinds.values()) + len(self.kinds) * self.is_marked

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where the numbers of each name lie."""
        ends = accumulate(kind.count for kind in self.kinds.values())
        own = zip(self.kinds.items(), ends, strict=True)
        return {name: slice(end - kind.count, end) for (name, kind), end in own}

    @property
    def marks(self) -> range:
        """Where the mark of each name lies, if there are marks."""
        return range(self.size - len(self.kinds), self.size)

    @cached_property
    def compared(self) -> Tensor:
        """Whether of a number the largest counts, [size]; else it is added up."""
        own = b"".join([kind.compared for kind in self.kinds.values()])
        return from_bytes(own.ljust(self.size, b"\1")).bool()

    @cached_property
    def centred(self) -> Tensor:
        """Where the numbers start of the names that have squares about a mean."""
        names = [name for name, kind in self.kinds.items() if kind.rule.is_centred]
        starts = [self.places[name].start for name in names]
        return torch.tensor(starts, dtype=torch.int64, device="cpu")

    def nothing(self, device: torch.device) -> Tensor:
        """Return the numbers of who has logged none of them."""
        numbers = torch.zeros(self.size, dtype=torch.float64, device=device)
        return numbers.masked_fill_(moved(self.compared, device), -math.inf)


class Totals(NamedTuple):
    """What was logged under some names."""

    names: Names
    numbers: Tensor  # float64, in the order of the names

    def among(self, union: Names) -> Tensor:
        """Return the numbers in the places of the union's; nothing where none was logged.

        >>> largest = Kind("max")
        >>> logged = Totals(Names.of({"a": largest}), torch.ones(1, dtype=torch.float64))
        >>> logged.among(Names.of({"a": largest, "b": largest}, is_marked=True)).tolist()
        [1.0, -inf, 1.0, -inf]
        """
        names, numbers = self
        if names.size == union.size:  # then they are the same names
            return numbers
        if union.is_marked and not names.is_marked:
            numbers = torch.cat([numbers, numbers.new_ones(len(names.kinds))])
        whole = union.nothing(numbers.device)
        whole[_places_among(names, union, numbers.device)] = numbers
        return whole


@lru_cache(maxsize=64)
def _places_among(names: Names, union: Names, device: torch.device) -> Tensor:
    """Return where the numbers of names lie among those of more names, marks where these have."""
    places = list[int]()
    for name in names.kinds:
        places += range(union.size)[union.places[name]]
    if union.is_marked:
        marks = zip(union.kinds, union.marks, strict=True)
        places += [mark for name, mark in marks if name in names.kinds]
    return moved(torch.tensor(places, dtype=torch.int64, device="cpu"), device)


def moved(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on another device; only a copy to the CPU waits."""
    is_of_host = x.device.type == "cpu"
    if is_of_host and device.type == "cuda":  # which then reads the memory by itself
        x = x.pin_memory()
    return x.to(device, non_blocking=is_of_host)


@lru_cache(maxsize=64)
def join(parts: tuple[Names, ...]) -> tuple[Names, Sequence[str]]:
    """Return the names of all parts, and those that were logged in two ways."""
    kinds: dict[str, Kind] = {}
    unlike = set[str]()
    for part in parts:
        unlike |= {name for name, kind in part.kinds.items() if kinds.get(name, kind) != kind}
        kinds |= part.kinds
    union = type(parts[0]).of(kinds, is_marked=any(part.is_marked for part in parts))
    return union, sorted(unlike)


def folded(parts: Iterable[Totals], union: Names) -> Tensor:
    """Return the numbers of several parts together, each of them in the places of the union."""
    rows = [part.among(union) for part in parts]
    compared, centred = (moved(x, rows[0].device) for x in (union.compared, union.centred))
    whole = torch.where(compared, fold(rows, "max"), fold(rows, "sum"))
    for row in rows if len(centred) else ():
        whole.index_add_(0, centred + SQUARES, growth(row, whole, centred))
    return whole
