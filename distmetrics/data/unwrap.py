"""The loader that one process would read, out of one that a framework has split over ranks already.

Nothing is imported from the frameworks: their wrappers are known by their attributes, and what
still splits the data after that is refused, so that nothing is split twice.
"""

import copy
import sys
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from distmetrics.data.rank_loader import RankLoader
from distmetrics.data.rng import samplers_in
from distmetrics.data.sharding import EvaluationSampler, RankSampler, clone
from distmetrics.errors import InputError, InputTypeError

_OF_RANKS = (("num_replicas", "rank"), ("num_processes", "process_index"), ("world_size", "rank"))
_DO = "pass the loader as it was before a framework prepared it."
_SAY = f"say exact(loader, dealt=True) of a stream that is each rank's own share; else {_DO}"
_OWN_PART = "a loader of a rank's own part repeats nothing, and needs no exact(…)."


@dataclass
class Unwrapped:
    """A loader of the whole data, or any other iterable of batches."""

    loader: Any
    device: torch.device | None  # where the framework moves batches to
    batch_size: int = 1  # how many samples a rank's batch has
    dealt: bool | None = None  # whether a stream is the rank's share


def unwrap(loader: Any, dealt: bool | None = None) -> Unwrapped:
    """Return the loader of the whole data that a loader of one rank's part was made from."""
    device, splits = None, 1  # how many ranks share a batch
    while (inner := inner_loader(loader)) is not None:
        if isinstance(loader, RankLoader) and dealt is None:
            dealt = loader.dealt
        held = vars(loader)
        _check_wrapper(held, inner, dealt)
        own_device = held.get("device") or held.get("_device")
        # Accelerate's dispatcher keeps it in its state.
        device = own_device or getattr(held.get("state"), "device", None) or device
        if held.get("split_batches"):
            splits = getattr(held.get("state"), "num_processes", splits)
        loader = inner
    if isinstance(loader, DataLoader):
        return _unwrapped(loader, device, dealt, splits)
    if not hasattr(loader, "__iter__"):
        raise InputTypeError(
            f"a {type(loader).__name__} is no loader",
            do="pass a DataLoader, or any iterable of batches.",
        )
    return Unwrapped(loader, device, dealt=dealt)


def _unwrapped(
    loader: Any, device: torch.device | None, dealt: bool | None, splits: int
) -> Unwrapped:
    batches, dataset = loader.batch_sampler, loader.dataset
    is_stream = isinstance(dataset, IterableDataset)
    if is_stream and is_sharded(dataset):
        dataset = getattr(dataset, "dataset", dataset)
    samplers = {"sampler": _whole(loader.sampler), "batch_sampler": _whole(batches)}
    whole = clone(loader, dataset=dataset, **samplers)
    _check_whole(whole, dealt)
    if dealt and not is_stream:
        raise InputError("dealt=True is for streams, and this loader has an order", do=_OWN_PART)
    batch_size = 1
    if not is_stream and type(whole.batch_sampler) is BatchSampler:
        splits = batches.num_processes if getattr(batches, "split_batches", False) else splits
        batch_size = max(1, batches.batch_size // splits)
    elif is_stream and splits > 1 and whole.batch_size and not whole.drop_last:
        size = max(1, whole.batch_size // splits)
        smaller = BatchSampler(whole.sampler, size, drop_last=False)
        whole = clone(whole, batch_sampler=smaller, batch_size=size)
    return Unwrapped(whole, device, batch_size, dealt)


def _check_wrapper(held: dict[str, Any], inner: Any, dealt: bool | None) -> None:
    """Refuse a wrapper that leaves out batches, or that has sharded a stream for its own rank."""
    if held.get("skip_batches"):
        raise InputError(
            f"the loader skips its first {held['skip_batches']} batches",
            do="pass the loader of all the data.",
        )
    state = sys.modules.get("accelerate.state")
    shards = "base_dataloader" in held and "slice_fn" not in held  # the dispatcher reads all
    stream = shards and isinstance(inner.dataset, IterableDataset) and not is_sharded(inner.dataset)
    if stream and not dealt and state is not None and state.PartialState().num_processes > 1:
        raise InputError(f"Accelerate has sharded the {type(inner.dataset).__name__}", do=_SAY)


def _check_whole(loader: Any, dealt: bool | None) -> None:
    """Refuse a loader of which a part still deals out to ranks, unless that is said of a stream."""
    for part in parts_of(loader):
        is_stream = isinstance(part, IterableDataset)
        if is_sharded(part) and (dealt is None or not is_stream):
            name = type(part).__name__
            raise InputError(
                f"the loader's {name} gives each rank a part of the data already, in a way that "
                "can't be looked through",
                do=_SAY if is_stream else _DO,
            )


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
    part = getattr(part, "_distributed", None) or part  # a data set of Hugging Face, split by node
    for count, rank in _OF_RANKS:
        if hasattr(part, count) and hasattr(part, rank):
            return int(getattr(part, count)) > 1
    return False


def parts_of(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield the data set of a loader, and its samplers with those inside them."""
    yield loader.dataset
    for part in (loader.sampler, loader.batch_sampler):
        yield from samplers_in(part)


def _whole(sampler: Any) -> Any:
    """Return the sampler, or batch sampler, of the whole order."""
    if isinstance(sampler, EvaluationSampler) and sampler.batch_size is not None:
        drop_last = sampler.multiple_of > 1
        size = sampler.multiple_of if drop_last else sampler.batch_size
        return BatchSampler(sampler.source, size, drop_last)
    if isinstance(sampler, RankSampler):
        return sampler.source
    if isinstance(sampler, DistributedSampler):
        dataset = getattr(sampler, "dataset", None)  # one of Hugging Face's has none
        inside = getattr(dataset, "_sampler", None)  # Lightning's, around any sampler
        return _in_one_process(sampler) if inside is None else _whole(inside)
    if is_sharded(sampler) and hasattr(sampler, "batch_sampler"):  # Accelerate's
        return _whole(sampler.batch_sampler)
    if type(sampler) is BatchSampler:
        return BatchSampler(_whole(sampler.sampler), sampler.batch_size, sampler.drop_last)
    return sampler


def _in_one_process(sampler: DistributedSampler[Any]) -> Any:
    """Return the sampler as it is in a world of one process; as it is where it can't be known."""
    count = len(cast(Sized, getattr(sampler, "dataset", ())))
    if abs(sampler.total_size - count) >= sampler.num_replicas:  # not of all samples, or not once
        return sampler
    whole = copy.copy(sampler)
    whole.num_replicas, whole.rank = 1, 0
    whole.num_samples = whole.total_size = count
    return whole
