"""What collectives cost, on paper: rounds, and the bytes that one rank receives in them."""

from __future__ import annotations

from dataclasses import dataclass

from distmetrics.state.plan import count_of


@dataclass(frozen=True, slots=True)
class Cost:
    """Collectives of one sync, and the bytes that one rank receives in them."""

    rounds: int
    received: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rounds + other.rounds, self.received + other.received)

    def __str__(self) -> str:
        return f"{count_of(self.rounds, 'collective')}, {size_text(self.received)}"


def gathered(nbytes: int, world_size: int) -> Cost:
    """Return the cost of an all_gather of so many bytes of each rank."""
    return Cost(1, (world_size - 1) * nbytes)


def reduced(nbytes: int, world_size: int) -> Cost:
    """Return the cost of an all_reduce, as a ring."""
    return Cost(1, -(-2 * (world_size - 1) * nbytes // world_size))


def size_text(nbytes: float) -> str:
    """Return a number of bytes in words.

    >>> size_text(96), size_text(98304)
    ('96 bytes', '96.0 KiB')
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
