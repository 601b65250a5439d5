"""Where the numbers of each name go on this rank."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from distmetrics.comm.sites import call_site
from distmetrics.log.kinds import Kind
from distmetrics.log.names import Names
from distmetrics.log.values import moved


class Slot:
    """Where a name's values go.

    Attributes:
        name: the user's.
        kind: how its values are combined.
        site: the user's line that logged it first.
        sums: where its sums start in each buffer; ``maxima``: its maxima.
        turn: the number of the step, as counted by the window, that has noted a value of it.
        plain: the plain numbers of its kind that wait to be added up.
    """

    __slots__ = ("kind", "maxima", "name", "plain", "site", "sums", "turn")

    def __init__(self, name: str, kind: Kind, sums: int, maxima: int, plain: Plain) -> None:
        self.name = name
        self.kind = kind
        self.plain = plain
        self.site = call_site()
        self.sums = sums
        self.maxima = maxima
        self.turn = -1


# Slots, values, weights.
Plain = list[tuple[Slot, float, float]]


class Noted(NamedTuple):
    """A value that waits to be added up; ``version`` tells whether it was changed since."""

    slot: Slot
    value: Tensor | float
    weight: Tensor | float
    version: int


@lru_cache(maxsize=64)
def places_of(slots: tuple[Slot, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where the sums of names start, and their maxima: [n, 1] each."""
    sums = torch.tensor([slot.sums for slot in slots], device="cpu")
    maxima = torch.tensor([slot.maxima for slot in slots], device="cpu")
    return moved(sums, device).unsqueeze(1), moved(maxima, device).unsqueeze(1)


def laid_out(slots: Iterable[Slot]) -> tuple[Names, Tensor, Tensor]:
    """Return names, and where in a buffer their sums and their maxima lie, in the names' order."""
    by_name = {slot.name: slot for slot in slots}
    names = Names({name: slot.kind for name, slot in by_name.items()})
    sums: list[int] = []
    maxima: list[int] = []
    for name, kind in names.kinds.items():
        slot = by_name[name]
        sums += range(slot.sums, slot.sums + kind.sums)
        maxima += range(slot.maxima, slot.maxima + kind.maxima)
    long = torch.int64
    return (
        names,
        torch.tensor(sums, dtype=long, device="cpu"),
        torch.tensor(maxima, dtype=long, device="cpu"),
    )
