"""What decides the order that samplers draw, and how it is made the same on all ranks."""

import random
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import Sampler

# The part that draws, an attribute of it, its value: a generator's bytes, or a number's digits.
State = list[tuple[Any, str, bytes]]
_drawing = threading.RLock()  # ranks of a ThreadWorld share the generators of the process


def held(part: Any, name: str, default: Any = None) -> Any:
    """Return what an object itself holds, and not its class."""
    return getattr(part, "__dict__", {}).get(name, default)


def samplers_in(part: Any) -> Iterator[Any]:
    """Yield a sampler, the one inside it, and so on."""
    while part is not None:
        yield part
        part = getattr(part, "batch_sampler", None) or getattr(part, "sampler", None)


def random_state(parts: Iterable[Any]) -> State:
    """Return what decides the order that samplers, or data sets, draw."""
    state: State = []
    for part in parts:
        # Accelerate's sampler has a seed of its own, by default each rank's.
        for name in ("generator", "initial_seed", "seed", "epoch"):
            value = held(part, name)
            if isinstance(value, torch.Generator):
                state.append((part, name, value.get_state().numpy().tobytes()))
            elif type(value) is int and isinstance(part, Sampler):
                state.append((part, name, str(value).encode()))
    return state


def restore(state: State) -> None:
    """Let samplers and data sets go on from a state."""
    for part, name, value in state:
        if name == "generator":
            part.generator.set_state(torch.frombuffer(bytearray(value), dtype=torch.uint8))
        else:
            setattr(part, name, int(value))


@contextmanager
def as_at_first(state: State, epoch: int) -> Iterator[None]:
    """Draw from the generators of a state inside the block; what drawing changes is put back."""
    generators = [each for each in state if each[1] == "generator"]
    with _drawing:
        before = random_state(part for part, *_ in state)
        try:
            restore(generators)
            for part, *_ in generators if epoch else ():
                part.generator.manual_seed(part.generator.initial_seed() + epoch)
            yield
        finally:
            restore(before)


@contextmanager
def seeded(seed: int, sampler: Any) -> Iterator[None]:
    """Seed the generators of PyTorch, Python and NumPy inside the block; theirs come back.

    Samplers that would draw from PyTorch's get one of their own: other threads draw from that too,
    for each loader that they begin to read.
    """
    numpy: Any = sys.modules.get("numpy")
    without = [part for part in samplers_in(sampler) if held(part, "generator", part) is None]
    with _drawing, torch.random.fork_rng(devices=[]):
        states = random.getstate(), numpy and numpy.random.get_state()
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed % 2**32)
        for part in without:
            part.generator = torch.Generator().manual_seed(seed)
        try:
            yield
        finally:
            for part in without:
                part.generator = None
            random.setstate(states[0])
            if numpy:
                numpy.random.set_state(states[1])
