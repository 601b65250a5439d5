"""A loader in which every rank sees its part of the data, and no sample is seen twice."""

from collections.abc import Sized
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler

from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.base import Communicator
from distmetrics.comm.current import chosen
from distmetrics.comm.sites import call_site
from distmetrics.data.dealing import RUNS, Layout
from distmetrics.data.rank_loader import LoaderPart, StreamPart
from distmetrics.data.repeats import settle
from distmetrics.data.sampling import (
    EvaluationBatches,
    EvaluationSampler,
    as_sampler,
    clone,
    has_order,
)
from distmetrics.data.unwrap import parts_of, unwrap
from distmetrics.errors import InputError


def exact(
    loader: Any,
    comm: Communicator | None = None,
    *,
    equal_batches: bool = False,
    seed: int = 0,
) -> Any:
    """Return a loader of this rank's part of the data, with every sample on exactly one rank.

    Loaders that frameworks prepare repeat samples, so that all ranks get equally many; a metric
    then counts some twice. Here shares differ by one batch at most, and where there are fewer
    samples than ranks some have none. Data set, batch size, workers, ``collate_fn`` and the rest
    stay the loader's own, and ``drop_last`` leaves out what one process would leave out. A loader
    that Accelerate, Fabric or Lightning has prepared, or that has a ``DistributedSampler``, is
    looked through; what moved batches to a device goes on doing so. A batch sampler of one's own
    is dealt out batch by batch, and so is data without an order (an ``IterableDataset``, or any
    iterable of batches): each rank reads all of it and keeps every ``world_size``-th batch. A data
    set that gives each rank its own part is exact as it is: don't pass it here.

    All ranks must call it. An order that a sampler draws is the same on all ranks: they take over
    rank 0's generators and seeds, and what draws from the global generators of PyTorch, Python or
    NumPy is seeded alike. A stream must come in the same order on all ranks.

    Args:
        loader: a ``DataLoader``, one that a framework has prepared, or any iterable of batches.
        comm: who shares the data; default all ranks of the job.
        equal_batches: give every rank as many batches, for a model whose forward pass has a
            collective in it (FSDP, say). A rank that has one fewer gets one more, of another rank's
            samples: it goes through the model, and :func:`fresh` leaves none of its rows.
        seed: of the order of a sampler without a generator; the same on all ranks.

    Raises:
        InputError: the ranks' loaders are not alike, or something in them deals out to ranks in
            a way that is not known (on every rank).

    >>> from torch.utils.data import DataLoader
    >>> [batch.tolist() for batch in exact(DataLoader(range(5), batch_size=2))]
    [[0, 1], [2, 3], [4]]
    """
    return exact_by(loader, chosen(comm), RUNS, equal_batches=equal_batches, seed=seed)


def exact_by(
    loader: Any,
    comm: Communicator,
    layout: Layout,
    *,
    equal_batches: bool = False,
    seed: int = 0,
    device: torch.device | None = None,
) -> Any:
    """Do what :func:`exact` does, by a layout of ``dealing``; batches go to a device if given."""
    _agree(loader, comm)
    return deal(
        loader,
        world_size=comm.world_size,
        rank=comm.rank,
        layout=layout,
        equal_batches=equal_batches,
        seed=seed,
        device=device,
    )


def deal(
    loader: Any,
    *,
    world_size: int,
    rank: int,
    layout: Layout = RUNS,
    equal_batches: bool = False,
    seed: int = 0,
    device: torch.device | None = None,
) -> Any:
    """Return a loader of a rank's part, as :func:`exact` does, without asking other ranks."""
    unwrapped = unwrap(loader)
    settle(loader)
    whole, device = unwrapped.loader, device or unwrapped.device
    if not has_order(whole):
        return StreamPart(whole, device, world_size, rank, equal_batches=equal_batches)
    options: dict[str, Any] = {"seed": seed, "layout": layout, "fill": equal_batches}
    dealer: EvaluationSampler
    if type(whole.batch_sampler) is BatchSampler:
        keys = as_sampler(whole.batch_sampler.sampler)
        dealer = EvaluationBatches(
            keys,
            world_size,
            rank,
            batch_size=unwrapped.batch_size,
            multiple_of=whole.batch_sampler.batch_size if whole.batch_sampler.drop_last else 1,
            **options,
        )
        share = EvaluationSampler(keys, world_size, rank, seed=seed, layout=layout)
        part = clone(whole, batch_sampler=dealer, sampler=share)
    else:
        name = "sampler" if whole.batch_sampler is None else "batch_sampler"
        order = getattr(whole, name)
        dealer = EvaluationSampler(as_sampler(order), world_size, rank, **options)
        part = clone(whole, **{name: dealer})
    if device is None and not equal_batches and layout is RUNS:
        return part  # code that works round by round asks for its steps
    return LoaderPart(part, device, dealer)


def _agree(loader: Any, comm: Communicator) -> None:
    """Check that the ranks' loaders are alike, and give all of them rank 0's random state."""
    whole, state, problem = None, [], ""
    try:
        unwrapped = unwrap(loader)
        whole = unwrapped.loader
        state = [value for *_, value in _random_state(whole)]
        text = _text(whole, unwrapped.batch_size, len(state))
    except InputError as error:
        text, problem = error.what, error.do
    except Exception as error:  # noqa: BLE001  (any sampler of a user's may raise anything)
        text = f"its samplers can't be read: {type(error).__name__}: {error}"
        problem = "give samplers and batch samplers a length."
    ranks = gather_objects([text, problem, state], _read, comm, "exact", call_site())
    texts = {rank: theirs.text for rank, theirs in enumerate(ranks)}
    problems = [theirs.problem for theirs in ranks if theirs.problem]
    if problems or len(set(texts.values())) > 1:
        raise InputError(
            "exact: the ranks' loaders can't be dealt out"
            if problems
            else "exact: the ranks' loaders are not alike, and they must all be of the whole data",
            per_rank=texts,
            do=(problems or ["give every rank the same data set and the same batch size."])[0],
            rank=comm.rank,
        )
    for (part, name, _), value in zip(_random_state(whole), ranks[0].state, strict=True):
        if name == "generator":
            part.generator.set_state(torch.frombuffer(bytearray(value), dtype=torch.uint8))
        else:
            setattr(part, name, value)


def _random_state(whole: Any) -> list[tuple[Any, str, Any]]:
    """Return what decides the order that a loader's samplers or its stream draw.

    A list of: the part that draws, an attribute of it, its value. Accelerate's sampler has a seed
    of its own, by default each rank's.
    """
    state: list[tuple[Any, str, Any]] = []
    if not isinstance(whole, DataLoader):
        return state
    for part in parts_of(whole):
        held = getattr(part, "__dict__", {})
        if isinstance(held.get("generator"), torch.Generator):
            value = held["generator"].get_state().numpy().tobytes()
            state.append((part, "generator", value))
        numbers = ("initial_seed", "seed", "epoch") if isinstance(part, Sampler) else ()
        names = [name for name in numbers if type(held.get(name)) is int]
        state.extend((part, name, held[name]) for name in names)
    return state


class _Theirs(NamedTuple):
    """What a rank has told of its loader: what it is, what to do if that is wrong, its state."""

    text: str
    problem: str
    state: list[Any]


def _read(data: Any) -> _Theirs:
    """Return what a peer has told; raise ValueError or TypeError for anything else."""
    text, problem, state = data
    return _Theirs(str(text), str(problem), list(state))


def _text(whole: Any, batch_size: int, seeds: int) -> str:
    """Say what a loader of the whole data is, alike on all ranks that have the same."""
    drawn = f", drawn by {seeds} seeds or generators" if seeds else ""
    if not has_order(whole):
        return f"batches without an order, of a {type(whole).__name__}{drawn}"
    if type(whole.batch_sampler) is BatchSampler:
        last = " but for the last" if whole.batch_sampler.drop_last else ""
        count = len(cast(Sized, whole.batch_sampler.sampler))
        return f"{count} samples in batches of {batch_size}{last}{drawn}"
    if whole.batch_sampler is None:
        return f"{len(whole.sampler)} samples, one by one{drawn}"
    name = type(whole.batch_sampler).__name__
    return f"{len(whole.batch_sampler)} batches of a {name}{drawn}"
