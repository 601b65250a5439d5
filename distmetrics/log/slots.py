"""Where the numbers of each name lie in a rank's buffers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

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
        window: the number of the last window that has counted a value of it.
    """

    __slots__ = ("kind", "maxima", "name", "site", "sums", "window")

    def __init__(self, name: str, kind: Kind, sums: int, maxima: int) -> None:
        self.name = name
        self.kind = kind
        self.site = call_site()
        self.sums = sums
        self.maxima = maxima
        self.window = -1


@lru_cache(maxsize=64)
def places(slots: tuple[Slot, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where the sums of names of a kind start, and where their maxima lie.

    Returns: [n, length] and [n, length, k]; the length of a number is 1.
    """
    kind = slots[0].kind
    length = kind.length or 1
    starts = torch.tensor([[slot.sums, slot.maxima] for slot in slots], device="cpu")
    indices = torch.arange(max(length, kind.maxima), device="cpu")
    sums = starts[:, :1] + indices[:length] * (kind.sums // length)
    maxima = starts[:, 1:] + indices[: kind.maxima]
    return moved(sums, device), moved(maxima.view(len(slots), length, -1), device)


def layout(slots: Iterable[Slot]) -> tuple[Names, Tensor, Tensor, Tensor]:
    """Return names, and where in a buffer their sums, their maxima and each one's first sum lie."""
    by_name = {slot.name: slot for slot in slots}
    names = Names({name: slot.kind for name, slot in by_name.items()})
    sums: list[int] = []
    maxima: list[int] = []
    firsts: list[int] = []
    for name, kind in names.kinds.items():
        slot = by_name[name]
        firsts += [slot.sums] if kind.sums else []
        sums += range(slot.sums, slot.sums + kind.sums)
        maxima += range(slot.maxima, slot.maxima + kind.maxima)
    found = [torch.tensor(x, dtype=torch.int64, device="cpu") for x in (sums, maxima, firsts)]
    return names, found[0], found[1], found[2]
