"""Which collectives of torch.distributed a program makes."""

import functools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from distmetrics.comm.patching import Name, Replacing

_COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
)


@contextmanager
def counted_torch_calls() -> Iterator[Counter[str]]:
    """Count the calls of ``torch.distributed``'s collectives inside the block, whoever makes them.

    The functions are wrapped for the length of the block, by explicit wish, and put back whatever
    happens.
    """
    calls: Counter[str] = Counter()

    def counting(name: str) -> Name:
        original = getattr(dist, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return original(*args, **kwargs)

        return Name(vars(dist), name, call)

    with Replacing().block(lambda: map(counting, _COLLECTIVES)):
        yield calls
