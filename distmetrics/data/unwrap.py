"""The loader that one process would read, out of one that a framework has split over ranks already.

Nothing is imported from the frameworks: their wrappers are known by their attributes.
"""

import copy
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from distmetrics.data.rank_loader import RankLoader
from distmetrics.data.sharding import EvaluationSampler, RankSampler, clone, samplers_in
from distmetrics.errors import InputError

_OF_RANKS = (("num_replicas", "rank"), ("num_processes", "process_index"), ("world_size", "rank"))
OWN_PART = "a loader of a rank's own part repeats nothing, and needs no exact(…)."


class Unwrapped(NamedTuple):
    """A loader of the whole data, or any other iterable of batches."""

    loader: Any
    device: torch.device | None  # where the framework moves batches to
    dealt: bool | None = None  # whether a stream is the rank's share


def unwrap(loader: Any, dealt: bool | None = None) -> Unwrapped:
    """Return the loader of the whole data that a loader of one rank's part was made from."""
    device = None
    while (inner := inner_loader(loader)) is not None:
        if isinstance(loader, RankLoader) and dealt is None:
            dealt = loader.dealt
        held = vars(loader)
        if held.get("skip_batches"):
            raise InputError(
                f"the loader skips its first {held['skip_batches']} batches",
                do="pass the loader of all the data.",
            )
        own_device = held.get("device") or held.get("_device")
        # Accelerate's dispatcher keeps it in its state.
        device = own_device or getattr(held.get("state"), "device", None) or device
        loader = inner
    if isinstance(loader, DataLoader):
        loader = _whole_loader(loader, dealt)
    elif not hasattr(loader, "__iter__"):
        raise InputError(
            f"a {type(loader).__name__} is no loader",
            do="pass a DataLoader, or any iterable of batches.",
        )
    return Unwrapped(loader, device, dealt)


def _whole_loader(loader: DataLoader[Any], dealt: bool | None) -> DataLoader[Any]:
    """Return the loader of the whole data; what still splits it is refused."""
    dataset = loader.dataset
    is_stream = isinstance(dataset, IterableDataset)
    if is_stream and is_sharded(dataset):
        dataset = getattr(dataset, "dataset", dataset)
    samplers = {name: _whole(getattr(loader, name)) for name in ("sampler", "batch_sampler")}
    whole = clone(loader, dataset=dataset, **samplers)
    for part in () if is_stream else parts_of(whole):
        if is_sharded(part):
            raise InputError(
                f"the loader's {type(part).__name__} gives each rank a part of the data already, "
                "in a way that can't be looked through",
                do="pass the loader as it was before a framework prepared it.",
            )
    if dealt and not is_stream:
        raise InputError("dealt=True is for streams, and this loader has an order", do=OWN_PART)
    return whole


def inner_loader(loader: Any) -> Any:
    """Return the loader that a wrapper of Accelerate or Fabric holds, or ours."""
    if isinstance(loader, RankLoader):
        return loader.loader
    held = getattr(loader, "__dict__", {})
    return held.get("base_dataloader", held.get("_dataloader"))


def active_loader() -> Any:
    """Return the loader of Accelerate that is being read."""
    state = sys.modules.get("accelerate.state")
    return None if state is None else state.GradientState().active_dataloader


def is_sharded(part: Any) -> bool:
    """True if a sampler or a data set gives each of several ranks a part."""
    return any(hasattr(part, rank) and getattr(part, count, 1) > 1 for count, rank in _OF_RANKS)


def parts_of(loader: Any) -> Iterator[Any]:
    """Yield the data set of a loader, and its samplers with those inside them."""
    if isinstance(loader, DataLoader):
        yield loader.dataset
        yield from samplers_in(loader.sampler)
        yield from samplers_in(loader.batch_sampler)


def _whole(sampler: Any) -> Any:
    """Return the sampler, or batch sampler, of the whole order."""
    if isinstance(sampler, EvaluationSampler) and sampler.batch_size is not None:
        return BatchSampler(sampler.source, sampler.batch_size, sampler.multiple_of > 1)
    if isinstance(sampler, RankSampler):
        return sampler.source
    if isinstance(sampler, DistributedSampler):
        # Lightning's is around any sampler; one of Hugging Face's has no data set.
        inside = getattr(getattr(sampler, "dataset", None), "_sampler", None)
        return _in_one_process(sampler) if inside is None else _whole(inside)
    if is_sharded(sampler) and hasattr(sampler, "batch_sampler"):  # Accelerate's
        return _whole(sampler.batch_sampler)
    if type(sampler) is BatchSampler:
        return BatchSampler(_whole(sampler.sampler), sampler.batch_size, sampler.drop_last)
    return sampler


def _in_one_process(sampler: Any) -> Any:
    """Return the sampler as it is in a world of one process; as it is where it can't be known."""
    count = len(getattr(sampler, "dataset", ()))
    if abs(sampler.total_size - count) >= sampler.num_replicas:  # not of all samples, or not once
        return sampler
    whole = copy.copy(sampler)
    whole.num_replicas, whole.rank = 1, 0
    whole.num_samples = whole.total_size = count
    return whole
