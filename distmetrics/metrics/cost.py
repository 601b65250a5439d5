"""What collectives cost: how many there are, and the bytes that one rank receives in them. Pure.

An all_gather brings every other rank's data, (W - 1)·n bytes; an all_reduce as a ring brings
2·(W - 1)/W·n, whatever the world's size (Patarasu and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", 2009). So a large state that can be reduced must be, and a
small one is better gathered: a gather of a frame costs one latency, and needs no agreement before
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """A number of collectives, and the bytes that one rank receives in them."""

    rounds: int = 0
    received: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rounds + other.rounds, self.received + other.received)

    def __str__(self) -> str:
        return f"{count_of(self.rounds, 'collective')}, {size_of(self.received)}"


def gathered(nbytes: int, world_size: int) -> Cost:
    """Return the cost of an all_gather of so many bytes a rank."""
    return Cost(1, (world_size - 1) * nbytes)


def reduced(nbytes: int, world_size: int) -> Cost:
    """Return the cost of an all_reduce of so many bytes."""
    return Cost(1, -(-2 * (world_size - 1) * nbytes // world_size))


def count_of(number: int, noun: str) -> str:
    """Return a number of things in words.

    >>> count_of(1, "metric"), count_of(2, "metric")
    ('1 metric', '2 metrics')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size_of(nbytes: float) -> str:
    """Return a number of bytes in words.

    >>> size_of(3 << 19)
    '1.5 MiB'
    """
    if nbytes < 1024:
        return f"{nbytes:.0f} bytes"
    power = min(int(math.log2(nbytes)) // 10, 3)
    return f"{nbytes / 1024**power:.1f} {('KiB', 'MiB', 'GiB')[power - 1]}"
