"""Which names ranks have logged, and where the numbers of each lie. Pure.

Ranks that have logged the same names have the same digest of them, so the names themselves travel
once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from distmetrics.log.kinds import Kind, kind_of

S = TypeVar("S", Sequence[float], Tensor)


class Names:
    """Names and their kinds, in the order in which their numbers travel.

    Args:
        kinds: by name; they are sorted.

    Attributes:
        kinds: by name, sorted.
        sums: the count of numbers that are added up; ``maxima``: of those that are compared.
    """

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self.kinds = {name: kinds[name] for name in sorted(kinds)}
        self.sums = sum(kind.sums for kind in kinds.values())
        self.maxima = sum(kind.maxima for kind in kinds.values())

    @classmethod
    def read(cls, data: bytes | str) -> Names:
        """Read what a peer has sent as :attr:`data`; raise anything for what is none."""
        return cls({str(name): kind_of(kind) for name, kind in json.loads(data)})

    @cached_property
    def data(self) -> bytes:
        """The names and kinds as they travel."""
        pairs = [[name, kind.name] for name, kind in self.kinds.items()]
        return json.dumps(pairs, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> str:
        """A hash: ranks that log the same have the same."""
        return hashlib.blake2b(self.data, digest_size=16).hexdigest()

    @property
    def size(self) -> int:
        """The count of numbers: sums first, then maxima."""
        return self.sums + self.maxima

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Where the sums of each name start, and its maxima."""
        places = {}
        sums, maxima = 0, self.sums
        for name, kind in self.kinds.items():
            places[name] = sums, maxima
            sums += kind.sums
            maxima += kind.maxima
        return places

    @cached_property
    def centred(self) -> Tensor:
        """Where the sums start of the names that have squares about a mean."""
        found = [self.places[name][0] for name, kind in self.kinds.items() if kind.is_centred]
        return torch.tensor(found, dtype=torch.int64, device="cpu")

    def within(self, union: Names) -> Tensor:
        """Return where each of these numbers lies among those of more names, [size]."""
        sums: list[int] = []
        maxima: list[int] = []
        for name, kind in self.kinds.items():
            first, second = union.places[name]
            sums += range(first, first + kind.sums)
            maxima += range(second, second + kind.maxima)
        return torch.tensor(sums + maxima, dtype=torch.int64, device="cpu")

    def of(self, numbers: S, name: str) -> tuple[S, S]:
        """Return the sums and the maxima of a name among all numbers."""
        first, second = self.places[name]
        kind = self.kinds[name]
        return numbers[first : first + kind.sums], numbers[second : second + kind.maxima]


def plain_parts(
    names: Names, numbers: Sequence[float], name: str
) -> tuple[Kind, Sequence[float], Sequence[float]] | None:
    """Return the plain kind of a name, its sums and maxima; None where it was not logged."""
    kind = names.kinds.get(name)
    if kind is None:
        return None
    sums, maxima = names.of(numbers, name)
    if kind.plain is None:
        return kind, sums, maxima
    *maxima, is_logged = maxima
    return None if is_logged < 0 else (kind.plain, sums, maxima)


def placed(numbers: Tensor, names: Names, union: Names) -> Tensor:
    """Return one rank's numbers in the places of the union's; nothing where it logged nothing."""
    if names.size == union.size:  # then they are the same names
        return numbers
    whole = numbers.new_zeros(union.size)
    whole[union.sums :] = -math.inf
    whole[names.within(union).to(numbers.device)] = numbers
    marks = [
        union.places[name][1] + kind.maxima
        for name, kind in names.kinds.items()
        if kind.plain is None and union.kinds[name].plain is kind
    ]
    whole[marks] = 1.0
    return whole


def join(parts: Iterable[Names]) -> tuple[Names, list[str]]:
    """Return the names of all ranks, and those that were logged in two ways."""
    kinds: dict[str, Kind] = {}
    unlike = set()
    for part in parts:
        for name, kind in part.kinds.items():
            first = kinds.setdefault(name, kind)
            if (first.plain or first) is not (kind.plain or kind):
                unlike.add(name)
            elif kind.plain is not None:
                kinds[name] = kind
    return Names(kinds), sorted(unlike)
