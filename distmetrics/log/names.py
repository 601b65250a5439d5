"""Which names ranks have logged, and where the numbers of each lie. Pure.

Ranks that have logged the same names have the same digest of them, so the names themselves travel
once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from distmetrics.comm.communicator import fold
from distmetrics.log.kinds import SQUARES, Kind, growth
from distmetrics.message import Message, encode

S = TypeVar("S", Sequence[float], Tensor)


class Names(Message, frozen=True, eq=False, dict=True):
    """Names and kinds, in the order in which their numbers travel: all sums, then all maxima."""

    kinds: dict[str, Kind]  # by name, sorted
    # Whether each name has one maximum more, its mark: 1 if it was logged, else -inf.
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
    def sums(self) -> int:
        """The count of numbers that are added up."""
        return sum(kind.sums for kind in self.kinds.values())

    @cached_property
    def size(self) -> int:
        """The count of all numbers."""
        return self.sums + sum(kind.maxima + self.is_marked for kind in self.kinds.values())

    @cached_property
    def places(self) -> dict[str, tuple[slice, slice]]:
        """Where the sums of each name lie, and its maxima, of which a mark is the last."""
        places, sums, maxima = {}, 0, self.sums
        for name, kind in self.kinds.items():
            ends = sums + kind.sums, maxima + kind.maxima + self.is_marked
            places[name] = slice(sums, ends[0]), slice(maxima, ends[1])
            sums, maxima = ends
        return places

    @cached_property
    def centred(self) -> Tensor:
        """Where the sums start of the names that have squares about a mean."""
        names = [name for name, kind in self.kinds.items() if kind.rule.is_centred]
        starts = [self.places[name][0].start for name in names]
        return torch.tensor(starts, dtype=torch.int64, device="cpu")

    def nothing(self, device: torch.device) -> Tensor:
        """Return the numbers of who has logged none of them."""
        numbers = torch.full((self.size,), -math.inf, dtype=torch.float64, device=device)
        numbers[: self.sums] = 0.0
        return numbers

    def of_name(self, numbers: S, name: str) -> tuple[S, S]:
        """Return the sums of a name among all numbers, and its maxima."""
        sums, maxima = self.places[name]
        return numbers[sums], numbers[maxima]


def moved(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on another device; only a copy to the CPU waits."""
    is_of_host = x.device.type == "cpu"
    if is_of_host and device.type == "cuda":  # which then reads the memory by itself
        x = x.pin_memory()
    return x.to(device, non_blocking=is_of_host)


@lru_cache(maxsize=64)
def within(names: Names, union: Names, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where the numbers of names lie among those of more names, and the marks of these."""
    sums, maxima, marks = list[int](), list[int](), list[int]()
    for name, kind in names.kinds.items():
        first, second = union.places[name]
        sums += range(first.start, first.stop)
        maxima += range(second.start, second.start + kind.maxima + names.is_marked)
        marks.append(second.stop - 1)
    own, marked = (torch.tensor(x, dtype=torch.int64, device="cpu") for x in (sums + maxima, marks))
    return moved(own, device), moved(marked, device)


def placed(numbers: Tensor, names: Names, union: Names) -> Tensor:
    """Return one rank's numbers in the places of the union's; nothing where it logged nothing.

    >>> largest = Kind("max")
    >>> union = Names.of({"a": largest, "b": largest}, is_marked=True)
    >>> placed(torch.ones(1, dtype=torch.float64), Names.of({"a": largest}), union).tolist()
    [1.0, 1.0, -inf, -inf]
    """
    if names.size == union.size:  # then they are the same names
        return numbers
    own, marks = within(names, union, numbers.device)
    whole = union.nothing(numbers.device)
    if union.is_marked and not names.is_marked:
        whole.index_fill_(0, marks, 1.0)
    whole[own] = numbers
    return whole


def join(parts: Iterable[Names]) -> tuple[Names, list[str]]:
    """Return the names of all parts, and those that were logged in two ways."""
    parts = [*parts]
    if len(parts) == 1:
        return parts[0], []
    kinds: dict[str, Kind] = {}
    unlike = set[str]()
    for part in parts:
        unlike |= {name for name, kind in part.kinds.items() if kinds.get(name, kind) != kind}
        kinds |= part.kinds
    return Names.of(kinds, is_marked=any(part.is_marked for part in parts)), sorted(unlike)


def folded(parts: Sequence[Tensor], union: Names) -> Tensor:
    """Return the numbers of several parts together, each of them in the places of the union."""
    centred = moved(union.centred, parts[0].device)
    sums = fold([part[: union.sums] for part in parts], "sum")
    for part in parts if len(centred) else ():
        sums.index_add_(0, centred + SQUARES, growth(part, sums, centred))
    return torch.cat([sums, fold([part[union.sums :] for part in parts], "max")])
