"""Short ways to write down a case."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from benchmarks.conformance.case import Batch, Case

__all__ = ["Source", "integers", "normal", "of", "paired", "uniform"]

Source = Callable[[Generator, int], Batch]


def of(cls: Any, batch: Source, group: str, variant: str = "", cause: str = "", **options: Any) -> Case:
    """Return the case of a class with these options; ``variant`` names it where a class has several."""
    name = f"{cls.__name__}[{variant}]" if variant else cls.__name__
    return Case(name, group, functools.partial(cls, **options), batch, cause)


def normal(generator: Generator, *shape: int) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape, generator=generator)


def uniform(generator: Generator, *shape: int) -> Tensor:
    """Numbers in (0, 1), in steps of 1/64: every float type holds them exactly, and some of them are equal."""
    return (torch.randint(1, 64, shape, generator=generator)) / 64


def integers(generator: Generator, high: int, *shape: int) -> Tensor:
    """Integers from 0 to ``high`` − 1."""
    return torch.randint(high, shape, generator=generator)


def paired(make: Callable[..., Tensor], *shape: int) -> Source:
    """Return a source of two tensors alike, n samples of ``shape`` each."""
    return lambda generator, n: Batch((make(generator, n, *shape), make(generator, n, *shape)))
