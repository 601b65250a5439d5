"""Random generators: seeded all together, and their states taken and put back."""

import functools
import os
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from distmetrics.arguments import FLAG, SEED, check
from distmetrics.data.sharding import clone

_SEED, _WORKERS = "DISTMETRICS_SEED", "DISTMETRICS_SEED_WORKERS"


def seed_everything(seed: int, *, workers: bool = True) -> int:
    """Seed torch, NumPy and Python, here and in processes that strategies start.

    Call it before the model is made. Where every rank runs the script, each calls it with the same
    seed and makes the same model. NumPy is seeded if it is imported.

    Args:
        seed: from 0 to 2³² - 1.
        workers: let workers of loaders draw different numbers on each rank, the same in each run.

    Returns:
        the seed.

    Raises:
        ConfigurationError: the seed is out of range.

    >>> seed_everything(7), torch.rand(()) == (seed_everything(7), torch.rand(()))[1]
    (7, tensor(True))
    """
    check("seed_everything", locals(), {"seed": SEED, "workers": FLAG})
    os.environ[_SEED] = str(seed)
    os.environ[_WORKERS] = str(int(workers))
    set_all(seed)
    return seed


def of_environment() -> int | None:
    """Return the seed of the last :func:`seed_everything`, here or in a parent process."""
    seed = os.environ.get(_SEED)
    return int(seed) if seed else None


def seeds_workers() -> bool:
    """True if the last :func:`seed_everything` was also about processes of loaders."""
    return os.environ.get(_WORKERS) == "1"


def set_all(seed: int) -> None:
    """Seed all generators of this process."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")  # who has not imported it does not draw from it
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def seed_workers(loader: Any, rank: int) -> Any:
    """Return a loader whose worker processes draw other random numbers on each rank."""
    has_workers = isinstance(loader, DataLoader) and loader.num_workers > 0
    if not has_workers or loader.worker_init_fn is not None:
        return loader
    return clone(loader, worker_init_fn=functools.partial(_start_worker, rank))


def _start_worker(rank: int, worker: int) -> None:
    # Torch gives each worker a seed of its own, and on all ranks the same ones.
    set_all((torch.initial_seed() + 1_000_003 * rank) % 2**63)


def states() -> dict[str, Any]:
    """Return the states of this process's generators, of plain types."""
    saved = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        saved["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        saved["numpy"] = (name, keys.tolist(), *rest)
    return saved


def set_states(saved: Mapping[str, Any]) -> None:
    """Put back what :func:`states` returned."""
    torch.set_rng_state(saved["torch"])
    random.setstate(saved["python"])
    if "cuda" in saved and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in saved:
        numpy.random.set_state(saved["numpy"])


def _generators(loader: Any) -> list[torch.Generator]:
    """Return the generators of a loader and its samplers, each once."""
    owners = [loader]
    for name in ("sampler", "batch_sampler"):
        sampler = getattr(loader, name, None)
        inner = getattr(sampler, "source", None) or getattr(sampler, "sampler", None)
        owners += [sampler, inner]
    generators = dict.fromkeys(getattr(owner, "generator", None) for owner in owners)
    return [each for each in generators if isinstance(each, torch.Generator)]


def generator_states(loader: Any) -> list[torch.Tensor]:
    """Return the states of the generators that a loader has of its own."""
    return [generator.get_state() for generator in _generators(loader)]


def load_generators(loader: Any, saved: list[torch.Tensor]) -> None:
    """Put back what :func:`generator_states` returned."""
    for generator, state in zip(_generators(loader), saved, strict=False):
        generator.set_state(state)


@contextmanager
def keep(*loaders: Any) -> Iterator[None]:
    """Leave all generators after the block as they were before it."""
    before, own = states(), [generator_states(loader) for loader in loaders]
    try:
        yield
    finally:
        set_states(before)
        for loader, saved in zip(loaders, own, strict=True):
            load_generators(loader, saved)
