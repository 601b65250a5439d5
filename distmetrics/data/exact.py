"""A loader in which every rank sees its part of the data, and no sample is seen twice."""

import zlib
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.call_site import call_site
from distmetrics.comm.communicator import Communicator, chosen, current, numbered
from distmetrics.data.check import settle
from distmetrics.data.rank_loader import LoaderPart, Share, StreamPart
from distmetrics.data.rng import held, random_state, set_generator
from distmetrics.data.same_stream import SameOrder, SameStream
from distmetrics.data.sharding import (
    RUNS,
    EvaluationBatches,
    EvaluationSampler,
    Layout,
    as_sampler,
    clone,
    has_order,
)
from distmetrics.data.unwrap import Unwrapped, parts_of, unwrap
from distmetrics.errors import InputError

_DO = (
    "give every rank the same data set, in the same batches; a loader of a rank's own part repeats "
    "nothing, and needs no exact(…)."
)


def exact(
    loader: Any,
    comm: Communicator | None = None,
    *,
    dealt: bool | None = None,
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
    is dealt out batch by batch, and so is a stream, data without an order (an ``IterableDataset``,
    or any iterable of batches): each rank reads all of it and keeps every ``world_size``-th batch.

    All ranks must call it. An order that a sampler draws is the same on all ranks: they take over
    rank 0's generators and seeds, and what draws from the global generators of PyTorch, Python or
    NumPy is seeded alike. A stream must come in the same order on all ranks. They compare checksums
    of its batches: of the first ones when it is first read, which all ranks must begin before any
    of them gets a batch, and of all of them at the next call that the ranks make together.

    Args:
        loader: a ``DataLoader``, one that a framework has prepared, or any iterable of batches.
        comm: who shares the data; default all ranks of the job.
        dealt: True where each rank's stream is its own share already (litData, WebDataset's
            ``split_by_node``, ``split_dataset_by_node``): it is read whole. False where each rank's
            is all of the data: nothing is compared, for samples that come in one order and are
            drawn anew when they are read, as augmentation does. None takes it for all of the data,
            and compares.
        equal_batches: give every rank as many batches, for a model whose forward pass has a
            collective in it (FSDP, say). A rank that has one fewer gets one more, of another rank's
            samples: it goes through the model, and :func:`fresh` leaves none of its rows.
        seed: of the order of a sampler without a generator; the same on all ranks.

    Raises:
        InputError: the ranks' loaders are not alike, or something in them deals out to ranks in
            a way that is not known (on every rank); when the loader is read, that there were no
            other ranks when this was called, and now there are; when it is read, or in the next
            call, that the ranks' data are not alike (on every rank).

    >>> from torch.utils.data import DataLoader
    >>> [batch.tolist() for batch in exact(DataLoader(range(5), batch_size=2))]
    [[0, 1], [2, 3], [4]]
    """
    ranks = chosen(comm)
    part = exact_by(loader, ranks, RUNS, dealt=dealt, equal_batches=equal_batches, seed=seed)
    part.is_alone = comm is None and ranks.world_size == 1
    return part


def exact_by(
    loader: Any,
    comm: Communicator,
    layout: Layout,
    *,
    dealt: bool | None = None,
    equal_batches: bool = False,
    seed: int = 0,
    device: torch.device | None = None,
) -> Any:
    """Do what :func:`exact` does, by a layout of ``dealing``; batches go to a device if given."""
    whole = comm.whole  # ranks of a layout that have one shard must draw one order
    with numbered(whole):
        unwrapped = _agree(loader, whole, dealt, equal_batches=equal_batches, seed=seed)
    settle(loader)
    return _part(
        unwrapped,
        world_size=comm.world_size,
        rank=comm.rank,
        comm=comm,
        same=SameOrder(comm) if comm.world_size > 1 else None,
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
    comm: Communicator | None = None,
    layout: Layout = RUNS,
    equal_batches: bool = False,
    seed: int = 0,
    device: torch.device | None = None,
) -> Any:
    """Return a loader of a rank's part, as :func:`exact` does, without asking other ranks.

    Those of ``comm`` are asked when a stream is read.
    """
    settle(loader)
    return _part(
        unwrap(loader),
        world_size=world_size,
        rank=rank,
        comm=comm,
        layout=layout,
        equal_batches=equal_batches,
        seed=seed,
        device=device,
    )


def _part(
    unwrapped: Unwrapped,
    *,
    world_size: int,
    rank: int,
    comm: Communicator | None,
    layout: Layout,
    equal_batches: bool,
    seed: int,
    device: torch.device | None,
    same: SameOrder | None = None,
) -> Any:
    """Return a loader of a rank's part of an unwrapped loader's data."""
    whole, device = unwrapped.loader, device or unwrapped.device
    if not getattr(whole, "in_order", True):
        whole = clone(whole, in_order=True)  # what a batch is follows from its place
    if unwrapped.dealt:
        return Share(whole, device, comm or current(), equal_batches=equal_batches)
    if not has_order(whole):
        is_asked = comm is not None and world_size > 1 and unwrapped.dealt is None
        return StreamPart(
            whole,
            device,
            world_size,
            rank,
            dealt=unwrapped.dealt,
            equal_batches=equal_batches,
            same=SameStream(comm) if comm and is_asked else None,
        )
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
            same=same,
            **options,
        )
        share = EvaluationSampler(keys, world_size, rank, seed=seed, layout=layout)
        part = clone(whole, batch_sampler=dealer, sampler=share)
    else:
        name = "sampler" if whole.batch_sampler is None else "batch_sampler"
        order = getattr(whole, name)
        dealer = EvaluationSampler(as_sampler(order), world_size, rank, same=same, **options)
        part = clone(whole, **{name: dealer})
    return LoaderPart(part, device, dealer)


def _agree(
    loader: Any, comm: Communicator, dealt: bool | None, *, equal_batches: bool, seed: int
) -> Unwrapped:
    """Return the loader of the whole data, if the ranks' are alike, with rank 0's random state."""
    unwrapped, drawn, state, problem = Unwrapped(None, None), [], [], ""
    try:
        unwrapped = unwrap(loader, dealt)
        whole = unwrapped.loader
        options = f", equal_batches={equal_batches}, seed={seed}" if equal_batches or seed else ""
        options += "" if unwrapped.dealt is None else f", dealt={unwrapped.dealt}"
        is_drawn = isinstance(whole, DataLoader) and not unwrapped.dealt
        parts = list(parts_of(whole)) if is_drawn else []
        drawn = random_state(parts)
        state = [value for *_, value in drawn]
        text = _text(whole, unwrapped.batch_size, len(state)) + _checksum(parts) + options
    except InputError as error:
        text, problem = error.what, error.do
    except Exception as error:  # noqa: BLE001  (any sampler of a user's may raise anything)
        text = f"samplers that can't be read: {type(error).__name__}: {error}"
        problem = "give samplers and batch samplers a length."
    ranks = gather_objects([text, problem, state], _read, "exact", call_site(), comm=comm)
    texts = {rank: theirs.text for rank, theirs in enumerate(ranks)}
    problems = [theirs.problem for theirs in ranks if theirs.problem]
    if problems or len(set(texts.values())) > 1:
        raise InputError(
            "exact: the ranks' loaders can't be dealt out"
            if problems
            else "exact: the ranks' loaders are not alike, and they must all be of the whole data",
            per_rank=texts,
            do=(problems or [_DO])[0],
            rank=comm.rank,
        )
    for (part, name, _), value in zip(drawn, ranks[0].state, strict=True):
        if name == "generator":
            set_generator(part.generator, value)
        else:
            setattr(part, name, value)
    return unwrapped


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
    batches = whole.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        return f"{len(batches)} batches of a {type(batches).__name__}{drawn}"
    sampler = whole.sampler if batches is None else cast(Any, batches.sampler)
    samples = f"{len(sampler)} samples"
    if not isinstance(sampler, SequentialSampler):
        samples += f" of a {type(sampler).__name__}"
    if batches is None:
        return f"{samples}, one by one{drawn}"
    last = " but for the last" if batches.drop_last else ""
    return f"{samples} in batches of {batch_size}{last}{drawn}"


def _checksum(parts: list[Any]) -> str:
    """Say what the lists are that samplers and subsets hold: ``random_split`` draws them."""
    held_lists = [held(part, name) for part in parts for name in ("indices", "weights")]
    checksum = 0
    for each in (*held_lists, *parts[1:]):  # the first is the data set
        places = each.tolist() if hasattr(each, "tolist") else each
        if isinstance(places, list | tuple | range) and " at 0x" not in str(places):
            checksum = zlib.crc32(str(places).encode(), checksum)
    return f", of a list with checksum {checksum:08x}" if checksum else ""
