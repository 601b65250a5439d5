"""The loader that one process would read, out of one that a framework has dealt out already.

Nothing is imported from the frameworks: what is looked through has a property that says so, and
whatever still deals data out after that is refused, never dealt out twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from distmetrics.data.sampling import Dealt, EvaluationBatches, clone
from distmetrics.errors import InputError


@dataclass
class Unwrapped:
    """A loader of the whole data.

    Attributes:
        loader: the plain loader; what was no ``DataLoader`` stays what it is.
        device: where the framework moves batches to, or None.
        batch_size: how many samples a rank's batch has; 1 where samples are not batched here.
    """

    loader: Any
    device: torch.device | None
    batch_size: int = 1


def unwrap(loader: Any) -> Unwrapped:
    """Return the loader of the whole data that a loader of one rank's part was made from.

    Looks through the loaders of Accelerate and Fabric, which hold another, through samplers and
    batch samplers that deal out to ranks, and through the trainer's own.

    Raises:
        InputError: something in it deals out to ranks in a way that is not known here.
    """
    device = None
    while (inner := _inner_loader(loader)) is not None:  # its truth would be its length
        device = vars(loader).get("device", vars(loader).get("_device")) or device
        loader = inner
    if not isinstance(loader, DataLoader):
        return Unwrapped(loader, device)
    whole = clone(
        loader,
        sampler=_whole(loader.sampler),
        batch_sampler=_whole_batches(loader.batch_sampler),
        dataset=_whole_data(loader.dataset),
    )
    check_whole(whole)
    return Unwrapped(whole, device, _batch_size(loader.batch_sampler, whole.batch_sampler))


def _batch_size(batches: Any, whole: Any) -> int:
    """Return how many samples a batch of one rank has; 1 where samples are not batched here."""
    if type(whole) is not BatchSampler:
        return 1
    splits = _deals(batches) and getattr(batches, "split_batches", False)
    return whole.batch_size // batches.num_processes if splits else whole.batch_size


def check_whole(loader: Any) -> None:
    """Refuse a loader of which a part still deals out to ranks."""
    for part in _parts(loader):
        if _deals(part):
            name = type(part).__name__
            raise InputError(
                f"the loader's {name} gives each rank a part of the data already, in a way that "
                "can't be looked through",
                do="pass the loader as it was before a framework prepared it.",
            )


def _inner_loader(loader: Any) -> Any:
    """Return the loader that a wrapper of Accelerate or Fabric holds, or ours."""
    held = getattr(loader, "__dict__", {})
    for name in ("base_dataloader", "_dataloader", "whole_loader"):
        if name in held:
            return held[name]
    return None


def _deals(part: Any) -> bool:
    """True if a sampler or a data set gives each of several ranks a part."""
    if isinstance(part, Dealt):
        return part.world_size > 1
    for count, rank in (("num_replicas", "rank"), ("num_processes", "process_index")):
        if hasattr(part, count) and hasattr(part, rank):
            return int(getattr(part, count)) > 1
    return False


def _parts(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield the data set of a loader, and its samplers with those inside them."""
    yield loader.dataset
    for part in (loader.sampler, loader.batch_sampler):
        seen: list[Any] = []
        while part is not None and not any(part is other for other in seen):
            yield part
            seen.append(part)
            part = getattr(part, "batch_sampler", None) or getattr(part, "sampler", None)


def _whole(sampler: Any) -> Any:
    """Return the sampler of the whole order."""
    if isinstance(sampler, Dealt):
        return sampler.source
    if isinstance(sampler, DistributedSampler):
        inside = getattr(sampler.dataset, "_sampler", None)  # Lightning's, around any sampler
        if inside is not None:
            return inside
        whole: Any = DistributedSampler(
            sampler.dataset, 1, 0, shuffle=sampler.shuffle, seed=sampler.seed
        )
        whole.set_epoch(sampler.epoch)
        return whole
    return _whole_batches(sampler) if isinstance(sampler, BatchSampler) else sampler


def _whole_batches(batches: Any) -> Any:
    """Return the batch sampler of the whole order."""
    if isinstance(batches, Dealt):
        if not isinstance(batches, EvaluationBatches):
            return batches.source
        drop_last = batches.multiple_of > 1
        return BatchSampler(batches.source, batches.batch_size, drop_last)
    if _deals(batches) and hasattr(batches, "batch_sampler"):  # Accelerate's
        return _whole_batches(batches.batch_sampler)
    if type(batches) is BatchSampler:
        return BatchSampler(_whole(batches.sampler), batches.batch_size, batches.drop_last)
    return batches


def _whole_data(dataset: Any) -> Any:
    """Return the data set inside one that serves each rank a part."""
    if isinstance(dataset, IterableDataset) and _deals(dataset) and hasattr(dataset, "dataset"):
        return dataset.dataset
    return dataset
