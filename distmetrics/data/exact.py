"""A loader in which every rank sees its part of the data, and no sample is seen twice."""

from functools import partial
from typing import Any

from torch.utils.data import BatchSampler

from distmetrics.call_site import call_site
from distmetrics.collectives.exchange import note_read
from distmetrics.collectives.header import Header, Problem
from distmetrics.collectives.ops import gather_messages
from distmetrics.comm.communicator import Communicator, chosen, current, one_call
from distmetrics.data.checksum import checksum
from distmetrics.data.rank_loader import LoaderPart, RankLoader, Share, StreamPart
from distmetrics.data.sharding import (
    EvaluationSampler,
    Sharding,
    clone,
    has_order,
    held,
    order_of,
    random_state,
    restore,
)
from distmetrics.data.unwrap import OWN_PART, Unwrapped, parts_of, unwrap
from distmetrics.errors import InputError
from distmetrics.message import Message, reading


def exact(
    loader: Any,
    comm: Communicator | None = None,
    *,
    dealt: bool | None = None,
    equal_batches: bool = False,
    seed: int = 0,
) -> Any:
    """Return a loader of this rank's part of the data, with every sample on exactly one rank.

    All ranks must call it. Data set, batch size, workers, ``collate_fn`` and the rest stay the
    loader's own; ``drop_last`` leaves out what one process would leave out. Shares differ by one
    batch at most, and a rank may have none. A loader that Accelerate, Fabric or Lightning has
    prepared, or that has a ``DistributedSampler``, is looked through. A batch sampler of one's own
    is dealt out batch by batch, and so is a stream (an ``IterableDataset``, or any iterable of
    batches): each rank reads all of it and keeps every ``world_size``-th batch.

    An order that a sampler draws is the same on all ranks: they take over rank 0's generators and
    seeds, and the global generators of PyTorch, Python and NumPy are seeded alike. A stream must
    come in the same order on all ranks: they compare checksums of its first batches when it is
    first read, which all ranks must begin, and of all of them at their next call.

    Args:
        loader: a ``DataLoader``, one that a framework has prepared, or any iterable of batches.
        comm: who shares the data; default the current communicator.
        dealt: True where each rank's stream is its own share already (litData, WebDataset's
            ``split_by_node``): it is read whole. None takes the stream for all of the data, and
            compares the ranks'. False does the same without comparing, for samples that change when
            they are read, as by augmentation.
        equal_batches: give every rank as many batches, for a model whose forward pass has a
            collective in it. A rank that has one fewer gets one of another rank's samples, of which
            :func:`fresh` leaves no rows.
        seed: of the order of a sampler without a generator; the same on all ranks.

    Raises:
        InputError: the ranks' loaders are not alike, or something in them deals out to ranks in
            an unknown way (on every rank). When the loader is read: it was made before there were
            other ranks. When it is read, or in the next call: the ranks' data are not alike (on
            every rank).

    >>> from torch.utils.data import DataLoader
    >>> [batch.tolist() for batch in exact(DataLoader(range(5), batch_size=2))]
    [[0, 1], [2, 3], [4]]
    """
    ranks = chosen(comm)
    part = exact_by(loader, ranks, dealt=dealt, equal_batches=equal_batches, seed=seed)
    part.is_alone = comm is None and ranks.world_size == 1
    return part


def exact_by(
    loader: Any, comm: Communicator, *, dealt: bool | None = None, **options: Any
) -> RankLoader:
    """Do what :func:`exact` does; for ``options`` see :func:`part_of`."""
    unwrapped, drawn, text, problem = Unwrapped(None, None), [], "", None
    try:
        unwrapped = unwrap(loader, dealt)
        drawn = [] if unwrapped.dealt else random_state(parts_of(unwrapped.loader))
        text = f"{_text(unwrapped.loader)}, drawn by {len(drawn)} seeds or generators, "
        text += f"dealt={unwrapped.dealt}, {options}"
    except InputError as error:
        problem = Problem.of(error)
    except Exception as error:  # noqa: BLE001  (any sampler of a user's may raise anything)
        what = f"{type(error).__name__}: {error}"
        problem = Problem("InputError", what, "give samplers and batch samplers a length.")
    mine = _LoaderMessage(text, tuple(value for *_, value in drawn))
    # Ranks that have one shard must draw one order too.
    state = _agree(mine, problem, comm=comm.whole)
    with reading("its generators", 0):
        restore([(*part, value) for (*part, _), value in zip(drawn, state, strict=True)])
    part = part_of(unwrapped, comm.world_size, comm.rank, comm, **options)
    if isinstance(part, LoaderPart) and comm.world_size > 1:
        part.own_sampler.note = partial(note_read, comm.whole, comm.whole.state.count)
    return part


def part_of(
    unwrapped: Unwrapped,
    world_size: int,
    rank: int,
    comm: Communicator | None = None,
    *,
    equal_batches: bool = False,
    in_rounds: bool = False,
    seed: int = 0,
) -> RankLoader:
    """Return a loader of a rank's part; ``comm`` compares what ranks read of a stream."""
    whole, dealt = unwrapped.loader, unwrapped.dealt
    common = whole, unwrapped.device, equal_batches, dealt
    if dealt:
        return Share(*common, comm=(comm or current()).whole)
    if not has_order(whole):
        compares = comm if world_size > 1 and dealt is None else None
        return StreamPart(*common, world_size=world_size, rank=rank, comm=compares)
    name = "sampler" if whole.batch_sampler is None else "batch_sampler"
    order, layout = getattr(whole, name), Sharding(in_rounds=in_rounds)
    if type(order) is BatchSampler and name == "batch_sampler":
        multiple_of = order.batch_size if order.drop_last else 1
        layout = Sharding(order.batch_size, multiple_of, in_rounds)
        order = order.sampler
    own = EvaluationSampler(order, world_size, rank, seed=seed, layout=layout, fill=equal_batches)
    own.is_order = True
    # In order: what a batch is follows from its place.
    part = clone(whole, in_order=True, **{name: own})
    return LoaderPart(part, *common[1:], own_sampler=own)


class _LoaderMessage(Message, frozen=True):
    """What a rank tells of its loader: what it is, and what decides the order that it draws."""

    text: str
    state: tuple[bytes, ...]


@one_call
def _agree(
    mine: _LoaderMessage, problem: Problem | None, *, comm: Communicator
) -> tuple[bytes, ...]:
    """Return rank 0's random state, if the ranks' loaders are alike."""
    header = Header("exact", site=call_site(), problem=problem)
    ranks = gather_messages(comm, mine, header, "its loader")
    texts = {rank: theirs.text for rank, theirs in enumerate(ranks)}
    if len(set(texts.values())) > 1:
        raise InputError(
            "exact: the loaders can't be dealt out: they must be alike on all ranks, and of the "
            "whole data",
            per_rank=texts,
            do=f"give every rank the same data set, in the same batches; {OWN_PART}",
            rank=comm.rank,
        )
    return ranks[0].state


def _text(whole: Any) -> str:
    """Say what a loader of the whole data is."""
    if not has_order(whole):
        return f"batches without an order, of a {type(whole).__name__}"
    order, batched = order_of(whole), ""
    if type(order) is BatchSampler:
        batched = f" in batches of {order.batch_size}, drop_last={order.drop_last}"
        order = order.sampler
    text = f"{len(order)} items of a {type(order).__name__}{batched}"
    places = held(whole.dataset, "indices")  # of a Subset, which random_split draws
    return text if places is None else f"{text}, of a list with checksum {checksum(places):08x}"
