"""The batches of a loader, and the steps that every rank takes for them."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from torch.utils.data import DataLoader, IterableDataset

from distmetrics.call_site import call_site
from distmetrics.collectives.ops import all_reduce, gather_objects
from distmetrics.comm.communicator import Communicator
from distmetrics.errors import ConfigurationError
from distmetrics.run.config import Limit
from distmetrics.run.wrapped import RunnerLoader

T = TypeVar("T")


def limited(loader: RunnerLoader, limit: Limit, flag: str) -> int | None:
    """Return how many batches of the loader to use, or None for all there are.

    Args:
        loader: this rank's loader.
        limit: a number of batches, a fraction of them, or None.
        flag: the trainer's flag, for messages.

    Raises:
        ConfigurationError: a fraction of a loader without a length, or less than a batch of one.
    """
    if limit is None:
        return None
    if isinstance(limit, int):
        return limit
    try:
        length = len(loader)
    except TypeError as error:
        raise ConfigurationError(
            f"{flag}={limit}: a {type(loader.loader).__name__} has no length to take a part of"
        ) from error
    if 0 < limit * length < 1:
        raise ConfigurationError(
            f"{flag}={limit} of {length} batches is no batch", do="say a number of batches."
        )
    return int(limit * length)


def length(loader: Any, limit: int | None) -> int | None:
    """Return the number of batches, or None if that is not known."""
    try:
        count = len(loader)
    except TypeError:
        return limit
    return count if limit is None else min(count, limit)


def agreed_counts(
    loaders: Sequence[Any],
    limits: Sequence[int | None],
    what: str,
    comm: Communicator,
    likely: str = "",
) -> list[list[int | None]]:
    """Return for each loader how many batches each rank has, None where one can't know.

    One exchange, for loaders to do ``what`` with.

    Raises:
        ConfigurationError: no rank has any of a loader, and no limit says so (on every rank).
    """
    own = list(map(_known_length, loaders, limits))
    read = partial(_counts, loaders=len(own))
    ranks = gather_objects(own, read, f"{what} batches", call_site(), comm=comm)
    by_loader = [list(counts) for counts in zip(*ranks, strict=True)]
    for index, counts in enumerate(by_loader):
        if limits[index] != 0 and all(count == 0 for count in counts):
            which = f" {index}" if len(loaders) > 1 else ""
            everywhere = "" if comm.world_size == 1 else " on every rank"
            raise ConfigurationError(
                f"the {what} loader{which} has length 0{everywhere}", likely=likely, rank=comm.rank
            )
    return by_loader


def _counts(data: Any, loaders: int) -> list[int | None]:
    """Return the numbers of batches that a peer has told; raise ValueError for what are none."""
    if len(data) != loaders:
        raise ValueError(f"counts of {len(data)} loaders, not of {loaders}")
    return [None if count is None else int(count) for count in data]


def check_not_empty(loaders: Sequence[Any], what: str, comm: Communicator) -> None:
    """Check that some rank has a batch of each loader; raises as :func:`agreed_counts`."""
    agreed_counts(loaders, [None] * len(loaders), what, comm)


def _known_length(loader: RunnerLoader, limit: int | None) -> int | None:
    """Return the number of batches, if the loader can be relied on to know it."""
    inner = loader.loader
    is_map = isinstance(inner, DataLoader) and not isinstance(inner.dataset, IterableDataset)
    if not (is_map or isinstance(inner, Sequence)) or length(loader, None) is None:
        return None
    return length(loader, limit)


def agreed_batches(
    batches: Iterator[Any],
    counts: Sequence[int | None],
    comm: Communicator,
    *,
    start: int = 0,
) -> Iterator[tuple[Any, int]]:
    """Yield this rank's batch or None, and how many ranks have one, until none has.

    Every rank gets the same number of pairs, however many batches it has, so that all take the same
    steps. Where every rank knows its number beforehand nothing more is exchanged; elsewhere each
    step asks.

    Args:
        batches: this rank's, from number ``start`` on.
        counts: as :func:`agreed_counts` returned them.
        comm: who takes part.
        start: how many batches of the epoch are over.
    """
    known = [count for count in counts if count is not None]
    if comm.world_size == 1:
        yield from ((batch, 1) for batch in batches)
        return
    if len(known) == len(counts):
        yield from _by_count(batches, known, comm.rank, start)
        return
    end = object()
    while True:
        batch = _required(next(batches, end), comm.rank)
        ranks = all_reduce(int(batch is not end), comm=comm, name="ranks with a batch")
        if not ranks:
            return
        yield (None if batch is end else batch), int(ranks)


def _by_count(
    batches: Iterator[Any],
    counts: Sequence[int],
    rank: int,
    start: int,
) -> Iterator[tuple[Any, int]]:
    fewest = min(counts)
    for step in range(start, max(counts)):
        batch = None
        if step < counts[rank]:
            try:
                batch = _required(next(batches), rank)
            except StopIteration:
                raise ConfigurationError(
                    f"the training loader of rank {rank} has {step} batches, and its length says "
                    f"{counts[rank]}"
                ) from None
        yield batch, len(counts) if step < fewest else sum(count > step for count in counts)


def _required(batch: T, rank: int) -> T:
    """Refuse None as a batch: among several ranks it stands for one that has no more."""
    if batch is None:
        raise ConfigurationError(
            f"the training loader of rank {rank} gave None for a batch: this rank alone would "
            "leave out a step",
            likely="a collate_fn that returns None where no sample is good.",
            do="leave bad samples out of the data set, or return a batch of no samples: tensors "
            "of shape (0, ...).",
        )
    return batch


def with_last(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Yield each item and whether it is the last, which needs a look ahead.

    >>> list(with_last("ab"))
    [('a', False), ('b', True)]
    """
    rest = iter(items)
    for item in itertools.islice(rest, 1):
        for following in rest:
            yield item, False
            item = following
        yield item, True


def no_batch(what: str) -> ConfigurationError:
    """Return the error of a loader without a length that turned out to be empty."""
    return ConfigurationError(
        f"the {what} gave no batch",
        likely="it has nothing, or it is an iterator, such as a generator, which one pass uses up.",
        do="pass an object that iter() can be called on again: a DataLoader, a list, a class "
        "with __iter__.",
    )
