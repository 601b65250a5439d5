"""Short ways to write down a case."""

from __future__ import annotations

import contextlib
import functools
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from benchmarks.conformance.case import Batch, Case, Source

__all__ = ["Source", "integers", "normal", "of", "paired", "seeded", "uniform"]

_drawing = threading.Lock()  # ranks that are threads share torch's generator


def of(cls: Any, batch: Source, group: str, variant: str = "", **options: Any) -> Case:
    """Return the case of a class with these options; ``variant`` tells several apart."""
    name = f"{cls.__name__}[{variant}]" if variant else cls.__name__
    return Case(name, group, functools.partial(cls, **options), batch)


def normal(generator: Generator, *shape: int) -> Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape, generator=generator)


def uniform(generator: Generator, *shape: int) -> Tensor:
    """Return numbers in (0, 1), in steps of 1/64.

    Every float type holds them exactly, and some of them are equal.
    """
    return (torch.randint(1, 64, shape, generator=generator)) / 64


def integers(generator: Generator, high: int, *shape: int) -> Tensor:
    """Integers from 0 to ``high`` − 1."""
    return torch.randint(high, shape, generator=generator)


def paired(make: Callable[..., Tensor], *shape: int) -> Source:
    """Return a source of two tensors alike, n samples of ``shape`` each."""
    return lambda generator, n: Batch((make(generator, n, *shape), make(generator, n, *shape)))


@contextlib.contextmanager
def _seed(number: int) -> Iterator[None]:
    with _drawing, torch.random.fork_rng():
        torch.manual_seed(number)
        yield


def seeded(cls: Any, *, draws_in_compute: bool = True) -> Any:
    """Return a class like ``cls`` that draws from the same seed in each update and compute.

    A class whose compute syncs other metrics must not draw in it: one rank at a time draws.

    What a batch draws then depends on the batch alone, and not on who saw it, or when: the value is
    determined.
    """

    def update(self: Any, *args: Any, **kwargs: Any) -> None:
        numbers = [float(arg.double().sum()) for arg in args if isinstance(arg, Tensor)]
        with _seed(
            zlib.crc32(repr(numbers).encode())
        ):  # a hash of NaN would be another one each time
            cls.update(self, *args, **kwargs)

    def compute(self: Any) -> Any:
        with _seed(0):
            return cls.compute(self)

    methods = {"update": update, "compute": compute} if draws_in_compute else {"update": update}
    return type(cls.__name__, (cls,), {**methods, "__doc__": cls.__doc__})
